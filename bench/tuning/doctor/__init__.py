"""What `fedbench doctor` checks."""

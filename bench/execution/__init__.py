"""One run from its configuration to its row, and what can be done with it afterwards."""

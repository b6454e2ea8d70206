"""One run from configuration to row, and what can be done with it afterwards."""

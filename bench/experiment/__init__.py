"""What is run: configurations from their sources, and the data and code that they name."""

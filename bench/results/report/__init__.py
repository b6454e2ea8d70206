"""The HTML page about a store."""

"""Dealing of a data set's images to clients."""

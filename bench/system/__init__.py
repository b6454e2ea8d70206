"""Errors, files, identifiers, seeds and devices, on which all other packages build."""

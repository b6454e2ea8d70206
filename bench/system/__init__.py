"""Errors, files, seeds and devices: what everything else stands on."""

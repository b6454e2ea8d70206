"""Searches replayed on a table of finished runs, without training."""

"""Data sets, their cache, how clients share them, and the views made of images."""

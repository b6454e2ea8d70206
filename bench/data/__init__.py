"""Data sets, their cache, how they are dealt to clients, and the views made of images."""

"""Augmented versions of images."""

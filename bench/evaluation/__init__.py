"""Evaluation of trained encoders, with and without labels."""

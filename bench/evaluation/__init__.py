"""What a trained encoder is worth, with and without labels."""

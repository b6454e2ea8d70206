"""What a trained encoder is worth: with labels (k-NN, linear probe) and without (align, unif)."""

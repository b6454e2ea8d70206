"""Label-free scores of an encoder from sums that clients may send."""

"""Rankings of comparable rows, with intervals and the published numbers beside them."""

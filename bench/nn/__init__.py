"""Networks, losses and the mathematics that methods share."""

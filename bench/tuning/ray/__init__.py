"""Ray Tune as the executor of cells."""

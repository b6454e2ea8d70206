"""Ray Tune as the executor of runs."""

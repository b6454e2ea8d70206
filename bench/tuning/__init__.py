"""Search spaces, studies, grids, and Ray Tune as the executor."""

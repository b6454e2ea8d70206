"""Many runs: studies, grids and sweeps."""

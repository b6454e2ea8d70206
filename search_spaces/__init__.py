"""Search spaces, grids and presets as YAML."""

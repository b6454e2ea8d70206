"""Pictures of what encoders have learned: angles between classes, maps of test features."""

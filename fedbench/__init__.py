"""fedbench: tune, sweep and compare federated methods that learn without labels."""

__version__ = "0.1.0"

"""Speed of fedbench beside a bare PyTorch loop and other simulators: `python -m perf`."""

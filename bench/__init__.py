"""The harness: data, trainer, evaluation, tuning, results. Nothing here knows a method by name."""

"""Rounds of a run: clients, workers, aggregation, server, checkpoints."""

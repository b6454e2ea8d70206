"""The rounds of a run: clients, server, aggregation, checkpoints."""

"""Rows, trials, curves and checkpoints in Parquet and safetensors files."""

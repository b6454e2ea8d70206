"""Data sets, partitions, labels and views."""

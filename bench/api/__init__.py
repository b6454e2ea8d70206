"""Public functions that join several rooms; `fedbench` holds them together with all others.

Each returns a record, raises `FedbenchError`s and prints nothing.
"""

"""Published tables (`papers/*.parquet`) and this project's own results.

`fedbench.bench.results.papers` has the columns of the tables and reads them; README.md says what
they hold and how to read them with anything else.
"""

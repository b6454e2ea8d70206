"""Published tables (`papers/*.parquet`) and this project's own results.

`fedbench.bench.results.leaderboard.published` reads the tables; README.md describes them.
"""

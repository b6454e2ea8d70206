"""The Parquet store, its schema, and the leaderboard."""

"""Results of runs: the store, leaderboards, reports, trackers."""

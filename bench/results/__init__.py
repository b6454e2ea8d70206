"""What runs leave behind: the store, leaderboards, reports, other viewers."""

"""Results for others: comparisons, plots, checked stores."""

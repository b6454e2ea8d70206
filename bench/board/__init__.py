"""Results for others: bundles of rows, checks of a stranger's rows, who reproduced them."""

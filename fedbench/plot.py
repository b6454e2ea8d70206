"""Charts of what `fedbench.leaderboard`, `studies` and `partition` return.

import fedbench.plot

fedbench.plot.accuracy(fedbench.leaderboard(grid="heterogeneity")).savefig("accuracy.svg")
"""

from fedbench.bench.board.plot import Picture, accuracy, cost, curves, loss, partition, search

__all__ = ["Picture", "accuracy", "cost", "curves", "loss", "partition", "search"]

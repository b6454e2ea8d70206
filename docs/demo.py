"""Say in one sentence what `make demo` has seen: its last line. `python docs/demo.py`."""

from collections.abc import Mapping
from typing import Any

import fedbench

EASE = {0.1: "with clients of few classes", 100.0: "with clients that are alike"}


def sentence(boards: Mapping[float, Mapping[str, Any]]) -> str:
    """Describe the lines of boards by their alpha and method, in points of accuracy.

    A line has `mean`, `ci95_low`, `ci95_high` and `gain`, which are fractions: accuracy, its 95 %
    interval over seeds, and what training added to the accuracy of the untrained encoder.
    """
    parts = []
    for alpha, lines in boards.items():
        ranked = sorted(lines.items(), key=lambda line: -line[1].mean)
        scores = " and ".join(
            f"{name} {100 * line.mean:.1f} ± {50 * (line.ci95_high - line.ci95_low):.1f} %"
            for name, line in ranked
        )
        untrained = sum(line.mean - line.gain for line in lines.values()) / len(lines)
        parts.append(f"{EASE[alpha]} {scores} (untrained {100 * untrained:.1f} %)")
    every = [line for lines in boards.values() for line in lines.values()]
    learnt = sum(line.ci95_low > line.mean - line.gain for line in every)
    return (
        f"What you saw: no label was used to train or tune, and {learnt} of {len(every)} encoders"
        f" are better than an untrained one by more than their interval: {'; '.join(parts)}."
    )


if __name__ == "__main__":
    groups = fedbench.leaderboard(grid="heterogeneity", preset="fashion-small").board.groups
    print(sentence({g.keys["alpha"]: {e.method: e for e in g.entries} for g in groups}))

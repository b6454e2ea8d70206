"""Print the outcome of the study `participation`, from the rows in leaderboards/results.

Usage: `python leaderboards/studies/participation/participation.py [--store DIR]`;
README.md says what is asked.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedbench import open_store
from fedbench.bench.results.chance import Marks
from fedbench.bench.results.leaderboard.statistics import holm, mean
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import plain_table
from fedbench.bench.tuning.grid import load_grid
from fedbench.leaderboards.studies.cells import (
    STORE,
    blind,
    counted,
    linear,
    minus,
    paired_p,
    ran,
    spread,
    unequal,
)

SEEDS = (0, 1, 2)
METHODS = ("orchestra", "simclr", "byol")
AXES = {  # grid -> name, values from the easiest
    "participation": ("clients a round", {0.5: "5", 0.2: "2", 0.1: "1"}),
    "local-epochs-budget": ("local epochs", {1: "1", 2: "2", 4: "4"}),
}
HEADER = ["axis", "method", "linear", "easiest − hardest", "beyond orchestra's", "p (Holm)"]
HEADER += ["verdict"]


def outcome(rows: Sequence[Row], marked: Mapping[str, Marks] = {}) -> list[list[str]]:
    """Return the table, in points; axes of which a cell has not run are left out.

    Args:
        rows: of a store.
        marked: marks by row id; a side with a run at chance has no verdict.
    """
    accuracy = {}
    runs: dict[tuple[str, str], list[Row]] = {}
    for name, (label, values) in AXES.items():
        cells = ran(rows, load_grid(name))
        keys = [(m, value, seed) for m in METHODS for value in values for seed in SEEDS]
        if all(key in cells for key in keys):
            for method in METHODS:
                runs[label, method] = [cells[key] for key in keys if key[0] == method]
                accuracy[label, method] = [
                    [linear(cells[method, value, seed]) for seed in SEEDS] for value in values
                ]
    lost = {key: minus(by[0], by[-1]) for key, by in accuracy.items()}
    reasons = {key: unequal(runs[key[0], "orchestra"], own) for key, own in runs.items()}
    tested = [key for key in lost if key[1] != "orchestra"]
    ps = [paired_p(lost[key], lost[key[0], "orchestra"]) for key in tested]
    corrected = dict(zip(tested, holm([1.0 if p is None else p for p in ps]), strict=True))
    lines = []
    for (axis, method), by in accuracy.items():
        names = next(values for label, values in AXES.values() if label == axis)
        each = zip(names.values(), by, strict=True)
        line = [axis, method, ", ".join(f"{mean(scores):.1f} ({name})" for name, scores in each)]
        line.append(spread(lost[axis, method]))
        if reasons[axis, method]:  # it stays in the family that was announced
            line += ["", "", f"no verdict: {reasons[axis, method]}"]
        elif (axis, method) in corrected:
            more = minus(lost[axis, method], lost[axis, "orchestra"])
            p = corrected[axis, method]
            settled = "supported" if (mean(more) or 0) > 0 else "contradicted"
            verdict = settled if p < 0.05 else "not settled"
            sides = {name: runs[axis, name] for name in ("orchestra", method)}
            if unlearnt := blind(counted(sides, marked)):
                verdict = f"no verdict: {unlearnt}"
            line += [spread(more), f"{p:.2g}", verdict]
        lines.append(line + [""] * (len(HEADER) - len(line)))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    print(plain_table(HEADER, outcome(open_store(parser.parse_args().store).rows())))

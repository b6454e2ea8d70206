"""Print the outcome of the study `confirmation`, from the release leaderboards/confirmation.

Usage: `python docs/studies/confirmation.py [--store DIR] [--grid]`; confirmation.md says what is
asked and how it is decided. With --grid: the grid of its runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from selection import FOLDER, _round  # the module beside this one

GRID = FOLDER / "confirmation.yaml"
COUNT, SOBOL_SEED = 24, 20261124
SEEDS, ALPHA = (200, 201), 0.1

Draw = Callable[[float], Any]


def _log(low: float, high: float) -> Draw:
    return lambda x: _round(low * (high / low) ** x)


def _choice(*values: float) -> Draw:
    return lambda x: values[int(len(values) * x)]


SPACES: Mapping[str, Mapping[str, Draw]] = {  # those of search_spaces/, but for the highest rate
    "aligned": {"method.uniformity": _choice(0.5, 1.0, 2.0), "method.t": _choice(1.0, 2.0, 4.0)},
    "simsiam": {},
    "featarc": {"method.temperature": _log(0.05, 1.0), "method.align_weight": _log(0.05, 1.0)},
    "lejepa": {"method.weight": _log(0.005, 0.2), "method.projection_dim": _choice(16, 64, 128)},
}


def configurations(method: str) -> list[dict[str, Any]]:
    """Return a method's configurations: the preset's, which is empty, and the Sobol points."""
    from scipy.stats import qmc

    space = {"client.lr": _log(0.001, 0.1), **SPACES[method]}
    sampler = qmc.Sobol(len(space), seed=SOBOL_SEED + list(SPACES).index(method))
    points = sampler.random(32)[: COUNT - 1]
    drawn = [
        {key: draw(float(x)) for (key, draw), x in zip(space.items(), point, strict=True)}
        for point in points
    ]
    return [{}, *drawn]


def grid_text() -> str:
    """Return the grid of the study's runs."""
    grid = {
        "grid": "confirmation",
        "description": "Sobol configurations of four methods that the study of selection had not",
        "source": "ours; written by docs/studies/confirmation.py",
        "axes": {"data.alpha": [ALPHA]},
        "points": [
            {"method": method, **values}
            for index in range(COUNT)
            for method in SPACES
            for values in [configurations(method)[index]]
        ],
        "methods": list(SPACES),
        "seeds": list(SEEDS),
    }
    return yaml.safe_dump(grid, sort_keys=False, width=100)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", action="store_true", help="print the grid and end")
    if parser.parse_args().grid:
        print(grid_text(), end="")


if __name__ == "__main__":
    main()

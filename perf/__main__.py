"""Measure fedbench beside a bare PyTorch loop and other simulators; docs/speed.md has results."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from perf import clustering, evaluation, growth, rounds, steps, trials
from perf.context import Context
from perf.measure import Result, log, machine, save
from perf.rivals import RivalMissingError

WORKS: Mapping[str, Callable[[Context], Result]] = {
    "views": steps.views,
    "W1": steps.resnet18,
    "W2": steps.small,
    "W3": rounds.against_bare,
    "W3-rivals": rounds.against_rivals,
    "W4-cohort": growth.cohorts,
    "W4-flower": growth.flower_clients,
    "W4-population": growth.population,
    "W4-rounds": growth.many_rounds,
    "W5": trials.trials,
    "W5-start": trials.command_start,
    "W6": clustering.clustering,
    "evaluation": evaluation.probes,
    "objective": evaluation.objective,
}
"""Works by name, each a few minutes at most."""

RIVALS = ("W3-rivals", "W4-flower")
"""Those that measure other simulators."""


def main() -> int:
    """Parse options, measure, write JSON; return 3 if a rival could not be installed."""
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--repeats", type=int, default=5, help="of every unit (default 5)")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="tiny sizes: does everything run? without other simulators, unless in --only",
    )
    parser.add_argument("--no-rivals", action="store_true", help="leave other simulators out")
    parser.add_argument("--data", help="10 classes of 32x32 colour images, as hub:DIR; else noise")
    parser.add_argument("--out", type=Path, default=Path("build/perf"), help="for results")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache" / "fedbench-perf",
        help="for images and rivals' environments (several GB)",
    )
    options = parser.parse_args()
    names = options.only or [name for name in WORKS if not (options.smoke and name in RIVALS)]
    if options.no_rivals:
        names = [name for name in names if name not in RIVALS]
    repeats = 1 if options.smoke else options.repeats
    cache = options.cache.resolve()
    context = Context(repeats, options.smoke, options.data, cache)
    images = options.data.partition(":")[0] if options.data else "random pixels"
    code = 0
    for name in names:
        log(f"{name}: {WORKS[name].__doc__}")
        began = time.perf_counter()
        try:
            result = WORKS[name](context)
        except RivalMissingError as err:
            log(f"{name} is not measured: {err}; --no-rivals leaves such works out")
            code = 3
            continue
        content = {
            "work": name,
            "smoke": options.smoke,
            "images": images,
            "machine": machine(),
            "minutes": round((time.perf_counter() - began) / 60, 2),
            **result.as_dict(),
        }
        save(options.out / f"{name}.json", content)
        for label, each in {**content["values"], **content["ratios"]}.items():
            log(f"  {label}: {each['median']:g} [{each['min']:g} - {each['max']:g}]")
    return code


if __name__ == "__main__":
    sys.exit(main())

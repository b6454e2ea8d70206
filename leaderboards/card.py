"""Pack the runs in leaderboards/results, with data card, citation and Croissant description.

Usage: `python leaderboards/card.py`; a test compares the files with the rows. Runs that proposals
have added in files of their own are packed with the others.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from fedbench import open_store
from fedbench.bench.board.release import HOLDS, describe
from fedbench.bench.results.store.files import PACKED
from fedbench.bench.results.store.released import SUMS
from fedbench.leaderboards.pack import packs, write

FOLDER = Path(__file__).with_name("results")
_USE = """\
```sh
fedbench leaderboard --store leaderboards/results
fedbench reproduce RUN_ID --store leaderboards/results
```

```python
from fedbench import open_store

rows = open_store("leaderboards/results").rows()
```
"""
_ORIGIN = """\
Each row is one run of fedbench. Its settings (`config.…`) and the data of `dataset_revision`
determine its numbers to the last bit on one numeric platform (`platform`); `fedbench reproduce`
repeats it. `git_sha` names the code. `curve_json` has the rounds of each run. leaderboards/studies/
says which question a grid of runs was to answer, and what was known before they ran.

Compute, as the sum of the rows' `wall_seconds` on shared machines:

{compute}

The presets are small. `laptop` makes 1/520 of the image passes of Lubana et al. 2022 (48,000
against 25 million; each image 1/104 as often), `cross-device-cpu` 1/21 of them.

Images: CIFAR-10 (A. Krizhevsky, Learning multiple layers of features from tiny images, 2009), for
which its authors state no licence and ask to be cited; it is a labelled part of the Tiny Images,
which their authors withdrew in 2020 over offensive labels that CIFAR-10 does not have.
Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf, 2017) is under the MIT licence. What is here are
figures of encoders that were trained on them; no image and no label is.
"""


def files() -> Mapping[str, bytes]:
    """Return the packed runs and the files that describe them, by name."""
    store = open_store(FOLDER)
    rows = store.rows()
    packed, schema = packs(store)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    runs: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        key = row.preset, row.hardware or "unknown"
        seconds[key] += row.wall_seconds or 0.0
        runs[key] += 1
    lines = [
        f"| {' | '.join(key)} | {runs[key]} | {seconds[key] / 3600:.1f} |" for key in sorted(runs)
    ]
    lines.append(f"| all | | {len(rows)} | {sum(seconds.values()) / 3600:.1f} |")
    described = describe(
        rows,
        schema,
        version=max(row.finished_at for row in rows).strftime("%Y.%m"),
        file=f"{PACKED}/*.parquet",
        holds=HOLDS,
        origin=_ORIGIN.format(
            compute="\n".join(["| preset | hardware | runs | hours |", "|---|---|---|---|", *lines])
        ),
        use=_USE,
    )
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in packed.items())
    return {**packed, SUMS: sums.encode(), **described}


if __name__ == "__main__":
    write(FOLDER, files())

"""From runs in a store to files: pictures, and the numbers that they show as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.figures.geometry import measure
from fedbench.bench.files import atomic_write_bytes, atomic_write_text
from fedbench.bench.results.lookup import find_row
from fedbench.bench.results.store import Store
from fedbench.bench.trained import open_run

FORMS = ("png", "svg")
GEOMETRY = "geometry.json"
"""Name of the file of numbers, of several runs in the chosen folder and of one beside the run."""


@dataclass(frozen=True)
class Figures:
    """Files that were written, and what they show: one record per run."""

    files: tuple[Path, ...]
    runs: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench figures --json` prints: the maps' points are in `geometry.json`."""
        kept = ("run_id", "title", "setting", "clients", "angles")
        return {
            "files": [str(file) for file in self.files],
            "runs": [{name: run[name] for name in kept} for run in self.runs],
        }


def write_figures(
    store: Store,
    run_ids: Sequence[str],
    folder: Path,
    *,
    forms: Sequence[str] = FORMS,
    num_images: int = 1000,
    client_id: int | None = None,
    data_dir: Path | None = None,
) -> Figures:
    """Write `angles` and `tsne` in each form, and `geometry.json` with their numbers.

    Each run's own numbers are kept beside its checkpoint as well, where a page about the store
    finds them.

    Args:
        store: where the runs are.
        run_ids: row ids, or unambiguous beginnings of them; runs stand side by side in this order.
        folder: made if need be; files in it are replaced.
        forms: `png`, `svg` or both.
        num_images: test images on each map, at most.
        client_id: whose encoder is mapped where encoders differ.
        data_dir: cache of data sets.

    Raises:
        StoreError: for a run that the store does not have, or has no checkpoint of.
        ConfigError: without runs, or for a client or a form that does not exist.
    """
    from fedbench.bench.figures import draw

    if not run_ids:
        raise ConfigError("no run given; `fedbench leaderboard --json` lists row ids")
    for form in forms:
        if form not in FORMS:
            raise ConfigError(f"{form!r} is no form of a picture; choose from {', '.join(FORMS)}")
    found = [
        measure(open_run(store, run_id, data_dir), num_images=num_images, client_id=client_id)
        for run_id in dict.fromkeys(find_row(store, run_id).row_id for run_id in run_ids)
    ]
    files = []
    for name, picture in (("angles", draw.angles), ("tsne", draw.maps)):
        for form in forms:
            files.append(folder / f"{name}.{form}")
            atomic_write_bytes(files[-1], picture(found, form))
    records = tuple(each.record() for each in found)
    with suppress(StoreError):  # a store that cannot be written can still be drawn
        for record in records:
            kept = store.cell_dir(record["run_id"]) / GEOMETRY
            atomic_write_text(kept, json.dumps(record) + "\n")
    files.append(folder / GEOMETRY)
    atomic_write_text(files[-1], json.dumps(records) + "\n")
    return Figures(tuple(files), records)

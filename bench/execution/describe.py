"""One row in full: its configuration with sources, its curve, and the commands that repeat it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.experiment.code import changed_code, foreign_code
from fedbench.bench.experiment.common_options import Sources
from fedbench.bench.experiment.fields import flat_config
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.chance import NO_MARKS, marks
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import FedbenchError

CHANGED = "changed"  # source of a value that neither the preset nor a default gives


@dataclass(frozen=True)
class Description:
    """One row of a store and what belongs to it.

    The source of a value is as in `fedbench config`, or `changed`, with study or grid if known.
    """

    row: Row
    config: Mapping[str, tuple[Any, str]]  # dotted name -> value and its source
    curve: Sequence[Mapping[str, Any]]  # points by evaluated round, as in `curve.parquet`
    at_chance: tuple[str, ...]  # terms of the loss that ended at chance (`bench.results.chance`)
    commands: tuple[str, ...]  # that repeat the run; the first compares every bit
    sources_unknown: str = ""  # why sources are empty: its method or preset is not here
    other_code: tuple[str, ...] = ()  # of packages, not as recorded: only the first command holds

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        config = {k: {"value": v, "source": source} for k, (v, source) in self.config.items()}
        row = self.row.model_dump(mode="json")
        return {"run_id": self.row.row_id, **vars(self), "row": row, "config": config}


def describe(run_id: str, store: Store | Path | str | None = None) -> Description:
    """Describe a stored run.

    Args:
        run_id: its row id, or an unambiguous beginning of at least 4 characters.
        store: see `open_store`.

    Raises:
        ConfigError: for an id that no row or several rows have.
        StoreError: for a store that is not there, or a curve that cannot be read.

    >>> from fedbench.bench.testing import demo_store
    >>> described = describe(demo_store().rows()[0].row_id, demo_store())
    >>> described.config["client.lr"]
    (0.05, 'changed')
    """
    given = store.root if isinstance(store, Store) else store
    where = [] if given is None else ["--store", str(given)]
    store = open_store(store).require()
    row = store.find(run_id)
    sources, unknown = _sources(row)
    other: tuple[str, ...] = ()
    if not unknown:
        other = tuple(changed_code(row.code, foreign_code(row.config)))
    # A method's field that is a mapping stays one value.
    values = dict(sorted(flatten(row.settings, keep=sources).items()))
    values.pop("spec", None)
    config = {key: (value, sources.get(key, "")) for key, value in values.items()}
    changed = [] if unknown else [k for k, (_, source) in config.items() if CHANGED in source]
    commands = [shlex.join(["fedbench", "reproduce", row.row_id, *where])]
    if not unknown and not other:
        words = Sources(set={key: config[key][0] for key in changed}).words(row.preset)
        run = ["fedbench", "run", row.method, *words, "--seed", str(row.seed)]
        commands.append(shlex.join(run))
    marked = marks(store, [row]).get(row.row_id, NO_MARKS)
    curve = store.curve(store.key(row))
    return Description(row, config, curve, marked.at_chance, tuple(commands), unknown, other)


def _sources(row: Row) -> tuple[dict[str, str], str]:
    """Return the source of each value of a row, or none and the reason."""
    try:
        values, data = flat_config(row.config), load_preset(row.preset).values["data.name"]
        same_data = resolve(
            row.method,
            preset=row.preset,
            set={"data.name": values["data.name"]},
            environ={},
            content=lambda *_: row.dataset,
        )
    except FedbenchError as err:
        return {}, str(err)
    before = flat_config(same_data.config) | {"data.name": data.value}
    sources = {**same_data.sources, "data.name": f"preset {row.preset} ({data.origin})"}
    scaled = row.scaled
    study = f" (study {row.study_id})" if row.study_id else ""
    for key, value in values.items():
        if key == "seed":
            sources[key] = "seed"
        elif key not in before or value != before[key]:
            sources[key] = CHANGED + (f" (rule of grid {row.grid})" if key in scaled else study)
    return {key: sources.get(key, "") for key in values}, ""

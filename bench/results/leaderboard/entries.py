"""Lines of a leaderboard: one training configuration over its seeds, ranked within its class.

A configuration has one name in all classes of a board. Where no class has two lines of a method,
the method is the name: values that were tuned for each class are one line over them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import pandas as pd

from fedbench.bench.config.dotted import last_names
from fedbench.bench.config.identity import section_defaults
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.leaderboard.columns import BOARD, notes
from fedbench.bench.results.leaderboard.comparability import as_text, class_id, differing
from fedbench.bench.results.leaderboard.published import PUBLISHED
from fedbench.bench.results.leaderboard.seeds import Beside, Seeds
from fedbench.bench.results.leaderboard.statistics import rounded
from fedbench.bench.results.store.frame import lines, plain
from fedbench.bench.results.store.settings import KEYS, method_defaults
from fedbench.bench.system.identity import canonical_json


@dataclass(frozen=True, eq=False)
class Group:
    """Lines of one comparability class, best first.

    The frame has the columns of `BOARD`, `hyperparameters`, `joined_by` (lines of a method that
    have it in common are one over the classes), `left_out` (what labels of the method leave out,
    since most of its lines share it) and `curve_ids` (the runs of the seeds whose curves have the
    most evaluations).
    """

    title: str  # names what sets the class apart
    keys: Mapping[str, Any]  # of the class
    frame: pd.DataFrame  # None = undefined
    note: str  # what the seeds of the class can show
    unscaled: Mapping[str, Any]  # keys as before a grid's rules

    @cached_property
    def entries(self) -> tuple[Any, ...]:
        """The rows of the frame, with columns as attributes."""
        return tuple(self.frame.itertuples(index=False, name="Line"))

    @property
    def class_id(self) -> str:
        """Identity of the comparability class."""
        return class_id(self.keys)

    def records(self) -> list[dict[str, Any]]:
        """Return plain values for JSON: `BOARD`, columns of the class, and the title."""
        of_class = {**{key: self.keys[key] for key in KEYS}, "group": self.title}
        records = self.frame[[column.name for column in BOARD]].to_dict("records")
        for record in records:
            record |= {k: [*v] for k, v in record.items() if isinstance(v, tuple)} | of_class
            if (found := record["published"]) is not None:
                record["published"] = {name: getattr(found, name) for name in PUBLISHED}
        return [{str(name): value for name, value in record.items()} for record in records]


def entries(rows: pd.DataFrame, metric: str, **beside: Unpack[Beside]) -> pd.DataFrame:
    """Return the lines of all classes of rows, by a metric; they are not named and ranked yet."""
    seeds = Seeds(rows, metric, beside)
    values = {
        c.name: c.value(seeds) if c.value else seeds.table[c.name]
        for c in BOARD
        if c.value or c.name in seeds.table
    }
    # A column has one value for each line, or one for all; an index of its own means nothing.
    lists = {k: v.array if isinstance(v, pd.Series) else v for k, v in values.items()}
    found = plain(pd.DataFrame(lists, index=seeds.first["at"]))
    found["hyperparameters"] = [*map(json.loads, seeds.settings)]
    found["curve_ids"] = seeds.curve_ids
    return found


def ranked(found: pd.DataFrame) -> pd.DataFrame:
    """Return lines best first in their class: diverged ones behind others, unranked ones last.

    Only lines with a finished seed that measured the metric have a rank.
    """
    better = needed(found.metric.iloc[0]).score
    none = found["mean"].isna()
    keys = found[["class_id", "method", "variant", "config_id"]].assign(
        uncounted=(found.selection == "oracle") | none,
        diverged=found.num_diverged > 0,
        place=[0.0 if v is None else -rounded(better(v)) for v in found["mean"]],
    )
    place = ["class_id", "uncounted", "diverged", "place"]
    keys = keys.sort_values([*place, "method", "variant", "config_id"])
    keys["position"] = keys.groupby("class_id").cumcount() + 1
    ranks = keys.groupby(place).position.transform("min").astype(object)
    return found.loc[keys.index].assign(rank=ranks.where(~keys.uncounted, None))


# Names


def labelled(entries: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of all classes with their names, what these leave out, and their notes.

    A label has, by its last name, each hyperparameter in which configurations of the method
    differ, but for a value that more than half of them share; `variant` has all.
    """
    several = {*entries.method[entries.duplicated(["class_id", "method"])]}
    # Other values than the preset's in a part of the cells are no line over all of them.
    by_hand = entries[~entries.tuned.astype(bool)].groupby(["method", "preset"])
    numbers = by_hand.unlike_preset.nunique()
    several |= {*numbers.index[numbers > 1].get_level_values("method")}
    names: dict[Any, tuple[str, str, str, tuple[str, ...]]] = {}  # by method and settings
    settings = entries[["method", "settings_id", "hyperparameters"]]
    for method, of in settings[settings.method.isin(several)].groupby("method"):
        given = {name for each in of.hyperparameters for name in each}
        defaults = {**section_defaults(), **method_defaults(str(method), given)}
        there = given & {*defaults}
        filled = [{n: defaults[n] for n in there} | each for each in of.hyperparameters]
        parts, left_out = _parts(dict(zip(of.settings_id, filled, strict=True)))
        for identity, (whole, part) in parts.items():
            label = f"{method} ({part})" if part else str(method)
            names[method, identity] = whole, label, identity, left_out
    pairs = zip(entries.method, entries.settings_id, strict=True)
    texts = [names.get(pair, ("", pair[0], "", ())) for pair in pairs]
    columns = ["variant", "label", "joined_by", "left_out"]
    named = pd.DataFrame(texts, entries.index, columns, dtype=object)
    entries = entries.drop(columns=columns, errors="ignore")  # of a metric called `label`
    found = pd.concat([entries, named], axis="columns")
    found["notes"] = [tuple(note.words for note in notes(line)) for line in lines(found)]
    return found


def _parts(
    configs: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Return all that configurations differ in, what tells each apart, and what most share."""
    names = differing(configs.values())
    last = last_names(names)
    shared: dict[str, str] = {}  # name -> value as JSON
    for name in names:
        values = Counter(canonical_json(config.get(name)) for config in configs.values())
        ((value, number),) = values.most_common(1)
        if number > len(configs) / 2:
            shared[name] = value
    parts = {}
    for identity, config in configs.items():
        texts = {name: as_text(config.get(name)) for name in names}
        apart = [n for n in names if canonical_json(config.get(n)) != shared.get(n)]
        whole = ", ".join(f"{name}={text}" for name, text in texts.items())
        parts[identity] = whole, ", ".join(f"{last[name]}={texts[name]}" for name in apart)
    return parts, tuple(f"{last[n]}={as_text(json.loads(text))}" for n, text in shared.items())

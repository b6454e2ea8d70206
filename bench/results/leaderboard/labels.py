"""Names of entries in tables and charts: a method, and what tells its configurations apart.

A configuration has one name in all classes of a board, so that charts can join its points. Where
no class has two entries of a method, the method is the name, however its hyperparameters differ
between classes: values that were tuned for each class are one entry over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.bench.results.leaderboard.comparability import as_text, differing
from fedbench.bench.system.identity import canonical_json

if TYPE_CHECKING:
    import pandas as pd

Usual = Mapping[str, tuple[str, ...]]
"""By method, the values that most of its configurations share and its labels leave out."""


def labelled(entries: pd.DataFrame) -> tuple[pd.DataFrame, Usual]:
    """Return the entries of all classes with their names, and what labels leave out.

    A label has, by its last name, each hyperparameter in which configurations of the method
    differ, but for a value that more than half of them share; `variant` has all. `joined_by` is
    what entries of a method have in common that are one over the classes.
    """
    counts = entries.groupby(["class_id", "method"]).size()
    several = {*counts[counts > 1].index.get_level_values("method")}
    found = entries.assign(variant="", label=entries.method, joined_by="")
    usual: dict[str, tuple[str, ...]] = {}
    for method in sorted(several):
        of = found[found.method == method]
        parts, left_out = _parts(dict(zip(of.settings_id, of.hyperparameters, strict=True)))
        whole, part = zip(*map(parts.__getitem__, of.settings_id), strict=True)
        found.loc[of.index, "variant"] = whole
        found.loc[of.index, "label"] = [f"{method} ({each})" if each else method for each in part]
        found.loc[of.index, "joined_by"] = of.settings_id
        if left_out:
            usual[method] = left_out
    return found, usual


def _parts(
    configs: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Return all that configurations differ in, what tells each apart, and what most share."""
    names = differing(configs.values())
    last = _last_names(names)
    shared: dict[str, str] = {}  # name -> value as JSON
    for name in names:
        values = Counter(canonical_json(config.get(name)) for config in configs.values())
        value, number = values.most_common(1)[0]
        if number > len(configs) / 2:
            shared[name] = value
    parts = {
        identity: (
            ", ".join(f"{name}={as_text(config.get(name))}" for name in names),
            ", ".join(
                f"{last[name]}={as_text(config.get(name))}"
                for name in names
                if canonical_json(config.get(name)) != shared.get(name)
            ),
        )
        for identity, config in configs.items()
    }
    usual = (
        f"{last[name]}={as_text(config.get(name))}"
        for name, value in shared.items()
        for config in configs.values()
        if canonical_json(config.get(name)) == value
    )
    return parts, tuple(dict.fromkeys(usual))


def _last_names(names: Sequence[str]) -> dict[str, str]:
    """Return the last part of each dotted name, or the whole where two of them share it.

    The hash of a plugin's source is called `code`, since the plugin's name says nothing here.
    """
    last = {n: "code" if n.startswith("code.") else n.rpartition(".")[2] for n in names}
    times = Counter(last.values())
    return {name: part if times[part] == 1 else name for name, part in last.items()}

"""Names of lines in tables and charts: a method, and what tells its configurations apart.

A configuration has one name in all classes of a board, so that charts can join its points. Where
no class has two lines of a method, the method is the name, however its hyperparameters differ
between classes: values that were tuned for each class are one contender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbench.bench.results.leaderboard.comparability import as_text, differing
from fedbench.bench.results.leaderboard.lines import Group, Line
from fedbench.bench.system.identity import canonical_json

Usual = Mapping[str, tuple[str, ...]]
"""By method, the values that most of its configurations share and its labels leave out."""


def labelled(groups: Sequence[Group]) -> tuple[tuple[Group, ...], Usual]:
    """Return the groups with the names of their lines, and what labels leave out.

    A label has, by its last name, each hyperparameter in which configurations of the method
    differ, but for a value that more than half of them share; `variant` has all.
    """
    counts = Counter((at, line.method) for at, group in enumerate(groups) for line in group.lines)
    several = {method for (_, method), number in counts.items() if number > 1}
    configs: dict[str, dict[str, Mapping[str, Any]]] = {method: {} for method in sorted(several)}
    for group in groups:
        for line in group.lines:
            if line.method in several:
                configs[line.method].setdefault(line.settings_id, line.hyperparameters)
    parts = {method: _parts(by_id) for method, by_id in configs.items()}

    def named(line: Line) -> Line:
        if line.method not in several:
            return line
        whole, part = parts[line.method][0][line.settings_id]
        label = f"{line.method} ({part})" if part else line.method
        return replace(line, variant=whole, label=label, joined_by=line.settings_id)

    usual = {method: left_out for method, (_, left_out) in parts.items() if left_out}
    return tuple(replace(g, lines=tuple(map(named, g.lines))) for g in groups), usual


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
    """Return the last part of each dotted name, or the whole where two of them share it."""
    last = {name: name.rpartition(".")[2] for name in names}
    times = Counter(last.values())
    return {name: part if times[part] == 1 else name for name, part in last.items()}

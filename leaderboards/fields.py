"""Write the columns `spec`, `fixed_json` and `open_json` of leaderboards/papers/*.parquet.

Usage: `python leaderboards/fields.py`; a test compares the tables with the presets and fields.yaml,
which say what the papers fix.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from fedbench.bench.config import Strict
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.results.store.row import PaperCell
from fedbench.bench.results.store.schema import decode, encode

FOLDER = Path(__file__).with_name("papers")
_NAMES = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "TinyImageNet": "tiny-imagenet"}


class _Open(Strict):
    """Fields that a paper leaves open, and the reason."""

    why: str
    fields: tuple[str, ...]


class _Rule(Strict):
    """Values that hold for the numbers that meet all conditions."""

    when: dict[str, str | list[str]] = Field(default_factory=dict)
    preset: str | None = None
    fixed: dict[str, JsonValue] = Field(default_factory=dict)
    open: tuple[_Open, ...] = ()

    def holds(self, cell: PaperCell, spec: str) -> bool:
        """Return True if a number and its spec meet all conditions."""
        method, *addons = spec.split("+")
        for name, allowed in self.when.items():
            values = [allowed] if isinstance(allowed, str) else allowed
            if name == "addon":
                met = bool({*addons} & {*values})
            elif name == "method":
                met = method in values
            else:
                met = getattr(cell, "method" if name == "name" else name) in values
            if not met:
                return False
        return True


@cache
def rules() -> tuple[_Rule, ...]:
    """Return the rules of fields.yaml."""
    content = load_yaml(Path(__file__).with_name("fields.yaml"))
    return tuple(_Rule.model_validate(rule) for rule in content["rules"])


def spec_of(cell: PaperCell) -> str | None:
    """Return the method spec of a number; all variants of Orchestra are that method."""
    return "orchestra" if cell.method.startswith("Orchestra") else cell.spec


def decide(cell: PaperCell, spec: str) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return the fields that a number fixes, with their values, and the open ones, with reasons.

    None for a number of a setting that is no preset.

    Raises:
        ValueError: if a field of the configuration is in neither.
    """
    holding = [rule for rule in rules() if rule.holds(cell, spec)]
    presets = {rule.preset for rule in holding} - {None}
    if not presets:
        return None
    (name,) = presets
    values = load_preset(str(name)).values_for(spec, {"data.name": _NAMES[cell.dataset]}, str)
    fixed: dict[str, Any] = {k: v.value for k, v in values.items() if v.origin != "ours"}
    left = {k: v.note or "the paper does not say" for k, v in values.items() if k not in fixed}
    known = {*Fields.of(spec).infos} - {"data.name"}
    for rule in holding:
        left = {k: why for k, why in left.items() if k not in rule.fixed}
        fixed |= rule.fixed
        for item in rule.open:
            left |= dict.fromkeys(item.fields, item.why)
            fixed = {k: value for k, value in fixed.items() if k not in item.fields}
    undecided = known - {*fixed} - {*left}
    if undecided:
        raise ValueError(
            f"{cell.source}, {cell.method}: fields.yaml and the presets do not say whether the"
            f" paper fixes {', '.join(sorted(undecided))}"
        )
    fixed.pop("data.name", None)
    unknown = ({*fixed} | {*left}) - known
    if unknown:
        raise ValueError(f"{cell.source}, {cell.method}: {spec} has no {', '.join(unknown)}")
    return fixed, left


def tables() -> Iterator[tuple[Path, bytes]]:
    """Yield every table and the bytes that it should have."""
    for path in sorted(FOLDER.glob("*.parquet")):
        cells = decode(path.read_bytes(), PaperCell)
        yield path, encode([c.model_copy(update=_columns(c)) for c in cells], PaperCell)


def _columns(cell: PaperCell) -> dict[str, str]:
    spec = spec_of(cell)
    if spec is None:
        return {}
    decided = decide(cell, spec)
    if decided is None:
        return {"spec": spec}
    fixed, left = decided
    return {"spec": spec, "fixed_json": _text(fixed), "open_json": _text(sorted(left))}


def _text(value: Mapping[str, Any] | list[str]) -> str:
    return json.dumps(value, sort_keys=True)


if __name__ == "__main__":
    for path, content in tables():
        path.write_bytes(content)

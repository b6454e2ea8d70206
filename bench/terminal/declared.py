"""Methods and add-ons as their source files declare them, read without importing any.

Importing a method imports torch, for which nobody waits who presses the tab key. A declaration that
is not plain, such as a name that is computed, is not found here; the registry has it all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Declared:
    """One class: its registered name, or "" for a base class, its bases and its own fields."""

    name: str
    bases: tuple[str, ...]
    fields: tuple[str, ...]


@cache
def _classes() -> dict[str, Declared]:
    """Map class names to the classes in the modules of all plugins."""
    found: dict[str, Declared] = {}
    for file in dict.fromkeys(_files()):
        tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name] = _declared(node)
    return found


def _files() -> Iterator[Path]:
    """Yield the source files of the modules that entry points name; of a package, all in it."""
    for point in entry_points(group="fedbench.methods"):
        try:
            spec: ModuleSpec | None = find_spec(point.module)
        except ImportError:  # the registry says so when it is used
            continue
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        yield from sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]


def _declared(node: ast.ClassDef) -> Declared:
    names = [
        decorator.args[0].value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and getattr(decorator.func, "id", getattr(decorator.func, "attr", "")) == "register"
        and decorator.args
        and isinstance(decorator.args[0], ast.Constant)
    ]
    fields = [
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith("ClassVar")
    ]
    bases = (getattr(base, "id", getattr(base, "attr", "")) for base in node.bases)
    return Declared(str(names[0]) if names else "", tuple(bases), tuple(fields))


def names(*, addons: bool) -> set[str]:
    """Return the registered names of methods, or of add-ons."""
    return {c.name for c in _classes().values() if c.name and _is_addon(c) == addons}


def method_keys(spec: str) -> set[str]:
    """Return the keys of a spec's hyperparameters: `method.temperature`, `method.uv.weight`."""
    by_name = {declared.name: declared for declared in _classes().values() if declared.name}
    keys = set()
    for name in spec.split("+"):
        if declared := by_name.get(name):
            prefix = f"method.{name}" if _is_addon(declared) else "method"
            keys |= {f"{prefix}.{field}" for field in _fields(declared) if field != "base"}
    return keys


def _is_addon(declared: Declared) -> bool:
    return any(
        base == "AddOn" or (base in _classes() and _is_addon(_classes()[base]))
        for base in declared.bases
    )


def _fields(declared: Declared) -> set[str]:
    inherited = (_fields(_classes()[base]) for base in declared.bases if base in _classes())
    return {*declared.fields}.union(*inherited)

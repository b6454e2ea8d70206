"""Methods and add-ons as their source files declare them, read without importing any.

Importing a method imports torch, which takes seconds: too long for completion and for a list. A
declaration that is not plain, such as a computed name, is not found here but is in the registry.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_GROUP = SHIPPED = "fedbench.methods"


@dataclass(frozen=True)
class Declared:
    """One class of a plugin.

    Attributes:
        name: its registered name, or "" for a base class.
        bases: names of the classes that it extends.
        fields: its own hyperparameters.
        summary: first line of its docstring.
        goes_with: for an add-on, the methods that it may wrap; None = any.
    """

    name: str
    bases: tuple[str, ...]
    fields: tuple[str, ...]
    summary: str
    goes_with: tuple[str, ...] | None


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
    for point in entry_points(group=_GROUP):
        try:
            spec: ModuleSpec | None = find_spec(point.module)
        except ImportError:  # the registry says so when it is used
            continue
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        yield from sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]


def _declared(node: ast.ClassDef) -> Declared:
    name, goes_with = "", None
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "register":
            with suppress(ValueError):  # of an argument that is computed
                name = ast.literal_eval(decorator.args[0])
                goes_with = next((ast.literal_eval(k.value) for k in decorator.keywords), None)
    fields = [
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith("ClassVar")
    ]
    bases = (getattr(base, "id", getattr(base, "attr", "")) for base in node.bases)
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    return Declared(name, tuple(bases), tuple(fields), summary, goes_with)


def records() -> list[dict[str, Any]] | None:
    """Return what a list of methods shows of each, sorted by name.

    Returns:
        None if there are methods of other packages: only importing them tells whether they work.
    """
    from fedbench.bench.config.aliases import aliases_of  # which brings pydantic

    if {point.value for point in entry_points(group=_GROUP)} != {SHIPPED}:
        return None
    registered = {c.name: c for c in _classes().values() if c.name}
    return [
        {
            "name": name,
            "kind": "add-on" if _is_addon(declared) else "method",
            "summary": declared.summary,
            "goes_with": None if declared.goes_with is None else sorted(declared.goes_with),
            "aliases": aliases_of(name),
        }
        for name, declared in sorted(registered.items())
    ]


def presets() -> list[dict[str, Any]] | None:
    """Return what a list of presets shows of each.

    Returns:
        None if there are presets of other packages, which are checked against the methods first.
    """
    from fedbench.bench.config.yaml_files import load_yaml, shipped

    if entry_points(group="fedbench.presets"):
        return None
    files = [load_yaml(file) for file in shipped("presets").values()]
    return [{"name": file["preset"], "description": file["description"]} for file in files]


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

"""Code of other packages that a run executes, known by a hash of its source.

What ships with fedbench is known by the version of the benchmark instead.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from fedbench.bench.config.schema import PROBE_PLUGINS
from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.method import registry
from fedbench.bench.system.errors import PluginError

_OURS = __name__.partition(".")[0]
_DATASETS = "fedbench.datasets"


def foreign_code(spec: str, evaluation: Mapping[str, Any], data_name: str) -> dict[str, str]:
    """Return the hashes of code that other packages bring to a configuration, by what they bring.

    Keys are names of methods and add-ons, `probes:NAME`, `objectives:NAME` and `datasets:NAME`.

    Args:
        spec: method spec.
        evaluation: with `protocols` and `objectives`.
        data_name: `data.name`.

    Raises:
        PluginError: for a class whose source cannot be read, as of an interactive session.
    """
    modules = {entry.name: entry.cls.__module__ for entry in registry.parse_spec(spec)}
    source = data_name.partition(":")[0]
    for group, names in (
        (PROBE_PLUGINS.group, evaluation.get("protocols") or ()),
        (_DATASETS, [source]),
    ):
        kind = group.rpartition(".")[2]
        points = {point.name: point.module for point in entry_points(group=group)}
        modules |= {f"{kind}:{name}": points[name] for name in names if name in points}
    if further := [n for n in evaluation.get("objectives") or () if n not in SHIPPED]:
        from fedbench.bench.evaluation.objectives.registry import objectives

        known = objectives()
        found = {name: type(known[name]).__module__ for name in further if name in known}
        modules |= {f"objectives:{name}": module for name, module in found.items()}
    return {
        name: source_hash(module)
        for name, module in sorted(modules.items())
        if module.partition(".")[0] != _OURS
    }


def changed_code(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return what two configurations have of other code, sorted."""
    return sorted({name for name, _ in {*first.items()} ^ {*second.items()}})


def packages(code: Mapping[str, str], spec: str) -> dict[str, str]:
    """Return the versions of the distributions that bring a configuration's methods, by name."""
    if not code:
        return {}
    names = {entry.name: entry.cls.__module__ for entry in registry.parse_spec(spec)}
    tops = {names[name].partition(".")[0] for name in code if name in names}
    points = entry_points(group=registry.GROUP)
    dists = [point.dist for point in points if point.module.partition(".")[0] in tops]
    return {dist.name: dist.version for dist in dists if dist is not None}


@cache
def source_hash(module: str) -> str:
    """Return a hash over a module and the modules of its own package that it imports.

    Comments, docstrings and formatting do not count (`ast.unparse`); whoever imports whom does.

    Raises:
        PluginError: if a source file cannot be read.
    """
    left, sources = [module], dict[str, str]()
    while left:
        name = left.pop()
        if name in sources or (path := _file_of(name)) is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        left += _imported(tree, name, is_package=path.name == "__init__.py")
        sources[name] = ast.unparse(_without_docstrings(tree))
    if module not in sources:
        raise PluginError(f"the source of module {module!r} cannot be read; put it into a file")
    text = "\0".join(f"{name}\0{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file_of(name: str) -> Path | None:
    """Return the file of a module; None if it has none or does not exist."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:  # a name of a module, not a module
            return None
        file = None if spec is None else spec.origin
    path = None if file is None else Path(file)
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _imported(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names that may be modules of the same top-level package."""
    package = module if is_package else module.rpartition(".")[0]
    top = module.partition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            base = resolve_name(dots + (node.module or ""), package) if dots else node.module or ""
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == top)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree

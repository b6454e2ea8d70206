"""Code of other packages that a run executes, known by a hash of its source.

What ships with fedbench is known by the version of the benchmark instead.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

from fedbench.bench.config import RunConfig, row_id
from fedbench.bench.config.schema import PROBE_PLUGINS, PROTOCOLS
from fedbench.bench.data.sources.base import PLUGINS, SOURCES
from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.method import registry
from fedbench.bench.results.store.reader import list_folder
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import REPRODUCTIONS, SUBMISSIONS, Store
from fedbench.bench.system.errors import PluginError

_OURS = __name__.partition(".")[0]


def foreign_code(config: RunConfig) -> dict[str, str]:
    """Return the hashes of code that other packages bring to a configuration, by what they bring.

    Keys are names of methods and add-ons, `backbones:NAME`, `probes:NAME`, `objectives:NAME` and
    `datasets:NAME`.

    Raises:
        PluginError: for a module that has neither source nor functions of Python.
    """
    from fedbench.bench.nn import backbones  # after the methods, which load torch anyway

    modules = {entry.name: entry.cls.__module__ for entry in registry.parse_spec(config.spec)}
    shipped = {name.partition(":")[0] for name in SOURCES}
    for group, names in (  # looking for entry points takes milliseconds
        (backbones.PLUGINS, {config.model.backbone} - {*backbones.BACKBONES}),
        (PROBE_PLUGINS.group, {*config.evaluation.protocols} - {*PROTOCOLS}),
        (PLUGINS, {config.data.name.partition(":")[0]} - shipped),
    ):
        kind = group.rpartition(".")[2]
        points = {p.name: p.module for p in entry_points(group=group)} if names else {}
        modules |= {f"{kind}:{name}": points[name] for name in names if name in points}
    if further := [name for name in config.evaluation.objectives if name not in SHIPPED]:
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
    """Return the versions of the distributions that bring a configuration's code, by name."""
    points = list[EntryPoint]()
    for name in code:
        kind, colon, entry = name.rpartition(":")
        if colon:
            points += entry_points(group=f"{_OURS}.{kind}", name=entry)
        else:
            module = next(e.cls.__module__ for e in registry.parse_spec(spec) if e.name == name)
            top = module.partition(".")[0]
            methods = entry_points(group=registry.GROUP)
            points += [p for p in methods if p.module.partition(".")[0] == top]
    dists = [point.dist for point in points if point.dist is not None]
    return {dist.name: dist.version for dist in dists}


def outdated(store: Store, current: Iterable[Row]) -> tuple[str, ...]:
    """Return the ids of stored runs that differ from given ones in the code of packages only.

    Runs that others submitted or reproduced are left out: their code is not this machine's.
    """
    made = [row for row in current if row.code and row.status != "error"]
    if not made:
        return ()
    ids = {_settings(row): row.row_id for row in made}
    specs = {row.method for row in made}
    others = [
        row.row_id
        for row in store.rows()
        if row.method in specs and row.code
        if ids.get(_settings(row), row.row_id) != row.row_id
    ]
    public = [path.name for path in list_folder(store.root / REPRODUCTIONS)]
    if others:
        manifests = list_folder(store.root / SUBMISSIONS)
        public += [path.read_text(encoding="utf-8") for path in manifests if path.is_file()]
    return tuple(sorted({n for n in others if not any(n in text for text in public)}))


def drop_outdated(store: Store, current: Iterable[Row]) -> tuple[str, ...]:
    """Delete the runs that `outdated` finds, and return their ids.

    Raises:
        StoreError: if the store cannot be written.
    """
    names = outdated(store, current)
    for name in names:
        store.drop(name)
    if names:
        store.refresh()
    return names


def _settings(row: Row) -> tuple[str, str]:
    """Return what identifies a run apart from code of other packages."""
    config = row.config.model_copy(update={"code": {}})
    return str(row.benchmark_version), row_id(config, row.dataset_revision)


@cache
def source_hash(module: str) -> str:
    """Return a hash over a module and the modules of its own package that it imports.

    Comments, docstrings and formatting do not count (`ast.unparse`). Of an interactive session,
    which has no file, the bytecode of its functions and classes counts instead.

    Raises:
        PluginError: if it has neither.
    """
    if _file_of(module) is None:
        return _session_hash(module)
    left, sources = [module], dict[str, str]()
    while left:
        name = left.pop()
        if name in sources or (path := _file_of(name)) is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        left += _imported(tree, name, is_package=path.name == "__init__.py")
        sources[name] = ast.unparse(_without_docstrings(tree))
    text = "\0".join(f"{name}\0{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _session_hash(module: str) -> str:
    values = vars(sys.modules[module]) if module in sys.modules else {}
    own = {k: v for k, v in values.items() if getattr(v, "__module__", None) == module}
    parts = [f"{name}\0{part}" for name in sorted(own) for part in _bytecode(own[name])]
    if not parts:
        raise PluginError(f"the source of module {module!r} cannot be read; put it into a file")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _bytecode(value: Any) -> Iterator[str]:
    """Yield text that differs where functions, or methods of a class, do other things."""
    if isinstance(value, type):
        for name, member in sorted(vars(value).items()):
            yield from (f"{name}\0{part}" for part in _bytecode(member))
    elif isinstance(value, property):
        yield from _bytecode(value.fget)
    elif isinstance(code := getattr(value, "__code__", value), CodeType):
        yield f"{code.co_code.hex()} {code.co_names}"
        for constant in code.co_consts:
            yield from _bytecode(constant) if isinstance(constant, CodeType) else [_text(constant)]
    elif (inner := getattr(value, "__func__", None)) is not None:  # static or of the class
        yield from _bytecode(inner)


def _text(constant: object) -> str:
    """Return a constant's text; the elements of a set have no order."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


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

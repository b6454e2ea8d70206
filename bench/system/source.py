"""Source of modules of other packages, known by a hash, as this process has read it."""

import ast
import dis
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

from fedbench.bench.system.errors import PluginError, ResourceError

OURS = __name__.partition(".")[0]
DECLARED = "version "
"""Begins what stands for a hash where the author of the code raises a version by hand."""


_IMPORTED = dict[str, bytes]()
"""Name of a module -> its source when the module was imported."""


def keep_source(module: str) -> None:
    """Keep the source of a module and of its package's other modules, as it is imported now.

    Their files may hold other code when a run asks for its hash.
    """
    top = module.partition(".")[0]
    loaded = [name for name in sys.modules if name.partition(".")[0] == top != OURS]
    for name in loaded:
        if name not in _IMPORTED and (path := _file_of(name)) is not None:
            _IMPORTED[name] = path.read_bytes()


def check_source(modules: Mapping[str, str], code: Mapping[str, str]) -> None:
    """Check that the files of a run's modules still have the code that the run recorded.

    `code` has the run's hashes by the same names; `ResourceError` if one differs.
    """
    for name, module in modules.items():
        # Only the process that a user started runs its __main__; it never imports it again.
        if module == "__main__" or module not in sys.modules or _file_of(module) is None:
            continue
        if code.get(name, "").startswith(DECLARED):
            continue
        try:
            same = _hash_of_files(module, {}) == code.get(name)
        except (SyntaxError, ValueError):  # saved half-way
            same = False
        if not same:
            raise ResourceError(
                f"the code of {name!r} in {_file_of(module)} changed since this command read it (or"
                " is another on this machine); run the command again, or restart the session"
            )


@cache
def source_hash(module: str) -> str:
    """Return a hash over a module and the modules of its own package that it imports.

    Comments, docstrings and formatting do not count (`ast.unparse`), nor does a field that no code
    reads yet. Of an interactive session, which has no file, the bytecode of its functions and
    classes counts instead; `PluginError` if there is neither.
    """
    return _session_hash(module) if _file_of(module) is None else _hash_of_files(module, _IMPORTED)


def _hash_of_files(module: str, kept: Mapping[str, bytes]) -> str:
    left, trees = [module], dict[str, ast.Module]()
    while left:
        name = left.pop()
        if name in trees or (path := _file_of(name)) is None:
            continue
        tree = ast.parse(kept[name] if name in kept else path.read_bytes())
        left += _imported(tree, name, is_package=path.name == "__init__.py")
        trees[name] = _without_docstrings(tree)
    words = {word for tree in trees.values() for word in _words(tree)}
    for name, tree in trees.items():
        _drop_unread_fields(tree, name, words)
    text = "\0".join(f"{name}\0{ast.unparse(trees[name])}" for name in sorted(trees))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_READS_ALL = frozenset(
    {"getattr", "vars", "__dict__", "model_dump", "model_fields", "model_copy", "dict"}
)
"""Names by which code may read fields without naming them."""


def _words(tree: ast.Module) -> Iterator[str]:
    """Yield the names and texts by which code may read a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _drop_unread_fields(tree: ast.Module, module: str, words: Collection[str]) -> None:
    """Remove `name: kind = default` from classes where no code reads the name.

    A field that a base class has stays: the base may read it.
    """
    if not _READS_ALL.isdisjoint(words):
        return
    for node in tree.body:
        cls = getattr(sys.modules.get(module), getattr(node, "name", ""), None)
        if not isinstance(node, ast.ClassDef) or cls is None or not hasattr(cls, "model_fields"):
            continue  # a tuple or a dataclass may be read as a whole
        inherited = _annotated(*cls.__mro__[1:])
        node.body = [
            part
            for part in node.body
            if not isinstance(part, ast.AnnAssign)
            or not isinstance(part.target, ast.Name)
            or part.target.id in words
            or part.target.id in inherited
        ] or [ast.Pass()]


def _annotated(*classes: type) -> set[str]:
    return {name for each in classes for name in vars(each).get("__annotations__", ())}


def _session_hash(module: str) -> str:
    values = vars(sys.modules[module]) if module in sys.modules else {}
    own = {k: v for k, v in values.items() if getattr(v, "__module__", None) == module}
    parts = [f"{name}\0{part}" for name in sorted(own) for part in _bytecode(own[name], values)]
    if not parts:
        raise PluginError(f"the source of module {module!r} cannot be read; put it into a file")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _bytecode(value: Any, session: Mapping[str, Any]) -> Iterator[str]:
    """Yield text that differs where functions, or methods of a class, do other things.

    Constants of the class, of the session where the code reads them, and of defaults count.
    """
    if isinstance(value, type):
        parts = []
        for name, member in sorted(vars(value).items()):
            parts += [f"{name}\0{part}" for part in _bytecode(member, session)]
            if _is_constant(member) and not name.startswith("__"):
                parts.append(f"{name}\0{member!r}")
        inherited = _annotated(*value.__mro__[1:])
        for name in sorted(_annotated(value)):  # as in a file, a field that is read counts
            if name in inherited or any(repr(name) in part for part in parts):
                field = getattr(value, "model_fields", {}).get(name)
                parts.append(f"{name}\0{getattr(field, 'default', None)!r}")
        yield from parts
    elif isinstance(value, property):
        yield from _bytecode(value.fget, session)
    elif isinstance(code := getattr(value, "__code__", value), CodeType):
        yield f"{code.co_code.hex()} {code.co_names}"
        for constant in code.co_consts:
            nested = isinstance(constant, CodeType)
            yield from _bytecode(constant, session) if nested else [_text(constant)]
        given = getattr(value, "__kwdefaults__", None) or {}
        defaults = *(getattr(value, "__defaults__", None) or ()), *given.values()
        yield from (repr(default) for default in defaults if _is_constant(default))
        read = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        known = sorted(name for name in read if _is_constant(session.get(name)))
        yield from (f"{name}\0{session[name]!r}" for name in known)
    elif (inner := getattr(value, "__func__", None)) is not None:  # static or of the class
        yield from _bytecode(inner, session)


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, bool | int | float | str | bytes)


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

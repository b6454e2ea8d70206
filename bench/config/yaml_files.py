"""YAML files under the core schema of YAML 1.2: `1e-3` is a number, `off` and `1:30` are text."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from fedbench.bench.config.overrides import parse_word
from fedbench.bench.system.errors import ConfigError, PluginError, UnknownNameError
from fedbench.bench.system.files import read_limited
from fedbench.bench.system.plugins import leave_out, load_error, origin

_STAMP = "# fedbench wrote this file; sha256 of the lines below: "
_MAX_DEPTH, _MAX_VALUES, _MAX_BYTES = 50, 100_000, 2**20
_PREFIX = "tag:yaml.org,2002:"
_TAGS: dict[type, str] = {
    kind: _PREFIX + name
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (type(None), "null"))
}


class _CoreSchema(yaml.resolver.BaseResolver):
    """Types of unquoted words as in `parse_word`; an empty one is null."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            tag = _TAGS.get(type(parse_word(value or "null")))
            if tag is not None:
                return tag
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


class _Loader(_CoreSchema, yaml.SafeLoader):
    """PyYAML's safe loader with the types of the core schema, and no others."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _refusal(parent, f"is nested more than {_MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        values, _ = self._size(node, {}, 1)
        if values > _MAX_VALUES:
            raise _refusal(
                node, f"holds more than {_MAX_VALUES:,} values once its aliases are written out"
            )
        return super().construct_document(node)

    def _size(
        self, node: yaml.Node, sizes: dict[yaml.Node, tuple[int, int]], depth: int
    ) -> tuple[int, int]:
        """Return the values of a node and its height, both with its aliases written out."""
        size = sizes.get(node, (1, 1))
        if depth + size[1] > _MAX_DEPTH + 1:  # an alias inside of its own anchor, among others
            raise _refusal(node, f"is nested more than {_MAX_DEPTH} deep")
        if node not in sizes and isinstance(node, yaml.CollectionNode):
            pairs = isinstance(node, yaml.MappingNode)
            below = [n for pair in node.value for n in pair] if pairs else node.value
            parts = [self._size(part, sizes, depth + 1) for part in below]
            size = (
                1 + sum(values for values, _ in parts),
                1 + max((height for _, height in parts), default=0),
            )
        sizes[node] = size
        return size

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != f"{_PREFIX}str":
                name = f" {key.value!r}" if isinstance(key, yaml.ScalarNode) else ""
                raise _refusal(key, f"the key{name} is not text: write it in quotes")
            if key.value in seen:
                raise _refusal(key, f"{key.value!r} is given twice in one mapping")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_word(self, node: yaml.ScalarNode) -> Any:
        value = parse_word(node.value or "null")
        if type(value) is int and node.tag == _TAGS[float]:
            return float(value)
        if _TAGS.get(type(value)) != node.tag:  # a tag that was written out: `!!float abc`
            raise _refusal(node, f"{node.value!r} is no {node.tag.removeprefix(_PREFIX)}")
        return value


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {
    None: _Loader.construct_undefined,
    f"{_PREFIX}map": _Loader.construct_mapping,
    f"{_PREFIX}seq": _Loader.construct_sequence,
    f"{_PREFIX}str": _Loader.construct_yaml_str,
    **dict.fromkeys(_TAGS.values(), _Loader.construct_word),
}


class _Dumper(_CoreSchema, yaml.SafeDumper):
    """Quotes text that a reader of YAML 1.2, or of YAML 1.1, would not take for text."""


def _refusal(node: Any, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse a YAML text that holds a mapping; an empty text is an empty mapping.

    Args:
        text: the document.
        name: of the file, for error messages.

    Raises:
        ConfigError: as `name:line: reason`, for anything but a mapping, for a key that is not text
            or is given twice, for nesting more than 50 deep, and for more than 100,000 values, in
            both cases with aliases written out.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as err:
        line = f":{err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"{name}{line}: {err.problem or 'not YAML'}") from err
    except (yaml.YAMLError, ValueError, OverflowError) as err:  # the last two: "\UFFFFFFFF"
        raise ConfigError(f"{name}: {' '.join(str(err).split())}") from err
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: must be a mapping of names to values (got {value!r})")
    return value


def load_yaml(path: Path | Traversable) -> dict[str, Any]:
    """Parse a YAML file that holds a mapping.

    Raises:
        ConfigError: if the file is missing, unreadable, larger than 1 MiB, not UTF-8, refused by
            `parse_yaml`, or not as `stamped` made it.
    """
    name = str(path) if isinstance(path, Path) else path.name
    try:
        data = read_limited(path, _MAX_BYTES) if isinstance(path, Path) else path.read_bytes()
        text = data.decode("utf-8")
    except FileNotFoundError as err:
        raise ConfigError(f"{name}: no such file") from err
    except OSError as err:
        raise ConfigError(f"{name}: cannot be read ({err.strerror})") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{name}: is not UTF-8 text") from err
    _check_stamp(text, name)
    return parse_yaml(text, name)


def stamped(text: str) -> str:
    """Put a first line before a YAML text with the checksum of it, which `load_yaml` checks."""
    return f"{_STAMP}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def is_stamped(text: str) -> bool:
    """Return True for a text whose first line is from `stamped`, or was before it was altered."""
    first = text.partition("\n")[0]
    return first[:16] == _STAMP[:16] or "sha256" in first


def _check_stamp(text: str, name: str) -> None:
    if is_stamped(text) and text != stamped(text.partition("\n")[2]):
        raise ConfigError(
            f"{name}: torn or altered since fedbench wrote it; if you changed it on purpose, delete"
            " its first line"
        )


def dump_yaml(value: Any, **options: Any) -> str:
    """Format a value as YAML that `parse_yaml` reads back; options are those of `yaml.dump`."""
    return str(yaml.dump(value, Dumper=_Dumper, **options))


def load_named(folder: str, name: str) -> dict[str, Any]:
    """Parse the YAML file that a name stands for, or that it names if it ends in `.yaml`.

    Args:
        folder: `grids` or `presets`.
        name: the stem of an installed file, or a path.

    Raises:
        UnknownNameError: for a name that no installed file has.
        ConfigError: as `load_yaml`.
    """
    if name.endswith((".yaml", ".yml")):
        return load_yaml(Path(name).expanduser())
    files = installed(folder)
    if name not in files:
        kind = folder.removesuffix("s")
        remedy = f"; a {kind} of yours is a file whose name ends in .yaml"
        raise UnknownNameError(kind, name, files, remedy)
    return load_yaml(files[name])


def installed(folder: str = "") -> dict[str, Traversable]:
    """Map stems to the YAML files of a folder: those that ship, then those of other packages.

    A package names a folder of its own under the entry-point group `fedbench.presets`,
    `fedbench.grids` or `fedbench.spaces`. One that cannot be read, and a file whose name is taken,
    is left out with a warning.
    """
    return shipped(folder) | _of_plugins(folder)


@cache
def _of_plugins(folder: str) -> dict[str, Traversable]:
    files: dict[str, Traversable] = {}
    taken = shipped(folder)
    for point in sorted(entry_points(group=f"fedbench.{folder or 'spaces'}")):
        try:
            there = _yaml_files(resources.files(point.module))
        except Exception as err:  # importing the package may raise anything
            leave_out(load_error(point, err))
            continue
        for stem, file in there.items():
            if stem in taken or stem in files:
                leave_out(PluginError(f"{file.name} of plugin {origin(point)}: its name is taken"))
            else:
                files[stem] = file
    return files


def shipped(folder: str = "") -> dict[str, Traversable]:
    """Map stems to the YAML files in a folder of the package `fedbench.search_spaces`."""
    root = resources.files("fedbench.search_spaces")
    return _yaml_files(root / folder if folder else root)


def _yaml_files(folder: Traversable) -> dict[str, Traversable]:
    return {
        file.name.removesuffix(".yaml"): file
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    }

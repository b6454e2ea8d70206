"""YAML files under the core schema of YAML 1.2: `1e-3` is a number, `off` and `1:30` are text."""

import io
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from fedbench.bench.config.overrides import parse_word
from fedbench.bench.system.checksums import check_yaml
from fedbench.bench.system.errors import ConfigError, UnknownNameError, nearest
from fedbench.bench.system.files import read_limited, user_path

_MAX_DEPTH, _MAX_VALUES, _MAX_BYTES = 50, 100_000, 2**20
_DEEP = f"is nested more than {_MAX_DEPTH} deep"
_NAMES = {str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}


class _Words(VersionedResolver):
    """Types of unquoted words as in `parse_word`: a date is text."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode and implicit[0]:
            return Tag(suffix=f"tag:yaml.org,2002:{_NAMES[type(parse_word(value or 'null'))]}")
        return super().resolve(kind, value, implicit)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver = _Words
    return yaml


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse the YAML text of a file that holds a mapping; an empty text is an empty mapping.

    Raises `ConfigError` as `name:line: reason`, for anything but a mapping, for a key that is not
    text or is given twice, for nesting more than 50 deep and more than 100,000 values, aliases
    written out.
    """
    try:
        value = _yaml().load(text)
        _check(value)
    except MarkedYAMLError as err:
        line = f":{err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"{name}{line}: {_line(err.problem or 'not YAML')}") from err
    except RecursionError as err:
        raise ConfigError(f"{name}: {_DEEP}") from err
    except (YAMLError, ValueError, OverflowError) as err:  # the last two: "\UFFFFFFFF"
        raise ConfigError(f"{name}: {_line(str(err))}") from err
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: must be a mapping of names to values (got {value!r:.80})")
    return value


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _check(value: Any) -> None:
    """Raise a ValueError for what JSON does not have, and for too much of the rest."""
    count, rest = 0, [(value, 1)]
    while rest:
        value, depth = rest.pop()
        count += 1
        if count > _MAX_VALUES:
            raise ValueError(
                f"holds more than {_MAX_VALUES:,} values once its aliases are written out"
            )
        if depth > _MAX_DEPTH:
            raise ValueError(_DEEP)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r:.80} is not text: write it in quotes")
            rest += [(part, depth + 1) for part in value.values()]
        elif isinstance(value, list):
            rest += [(part, depth + 1) for part in value]
        elif type(value) not in _NAMES:
            raise ValueError(f"{value!r:.80} is neither text nor a number, a list or a mapping")


def no_such_file(name: str) -> ConfigError:
    """Return the error for a file that is not there, with the nearest name in its folder."""
    path = user_path(name)
    close = nearest(path.name, (other.name for other in path.parent.glob("*.y*ml")))
    hint = "give the path of one that exists" if close is None else f"did you mean {close!r}?"
    return ConfigError(f"{name}: no such file; {hint}")


def load_yaml(path: Path | Traversable) -> dict[str, Any]:
    """Parse a YAML file that holds a mapping, of at most 1 MiB; `ConfigError` as `parse_yaml`.

    A pipe, as `--config <(command)` names one, is read once: then it is empty.
    """
    name = str(path) if isinstance(path, Path) else path.name
    try:
        if not isinstance(path, Path):
            data = path.read_bytes()
        elif path.is_fifo():
            data = _of_pipe(path, path.stat().st_ino)
        else:
            data = read_limited(path, _MAX_BYTES)
        text = data.decode("utf-8")
    except FileNotFoundError as err:
        raise no_such_file(name) from err
    except OSError as err:
        raise ConfigError(f"{name}: cannot be read ({err.strerror})") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{name}: is not UTF-8 text") from err
    try:
        check_yaml(text)
    except ValueError as err:
        raise ConfigError(
            f"{name}: torn or altered: {err}; if you changed it on purpose, delete its first line"
        ) from err
    return parse_yaml(text, name)


@cache
def _of_pipe(path: Path, inode: int) -> bytes:
    return read_limited(path, _MAX_BYTES)


def dump_yaml(value: Any, *, sort: bool = True, flow: bool = False) -> str:
    """Format a value of JSON's types as YAML that `parse_yaml` reads back, in ASCII.

    Keys of mappings are sorted unless `sort` is false; `flow` gives one line, as JSON.
    """
    yaml, text = _yaml(), io.StringIO()
    yaml.representer.sort_base_mapping_type_on_output = sort
    yaml.allow_unicode = False
    yaml.default_flow_style = flow
    if flow:
        yaml.width = 10_000
    yaml.dump(value, text)
    return text.getvalue()


def load_named(folder: str, name: str) -> dict[str, Any]:
    """Parse a YAML file of `grids` or `presets`: one that is installed, or a path to `.yaml`.

    Raises `UnknownNameError` for a name that no installed file has, else as `load_yaml`.
    """
    if name.endswith((".yaml", ".yml")):
        return load_yaml(user_path(name))
    files = installed(folder)
    if name not in files:
        kind = folder.removesuffix("s")
        remedy = f"; a {kind} of yours is a file whose name ends in .yaml"
        raise UnknownNameError(kind, name, files, remedy)
    return load_yaml(files[name])


def installed(folder: str = "") -> dict[str, Traversable]:
    """Map stems to the YAML files in a folder of the package `fedbench.search_spaces`."""
    root = resources.files("fedbench.search_spaces")
    files = (root / folder if folder else root).iterdir()
    found = {f.name.removesuffix(".yaml"): f for f in files if f.name.endswith(".yaml")}
    return dict(sorted(found.items()))

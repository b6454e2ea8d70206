"""YAML as people mean it: what YAML 1.1 would silently read as something else is refused.

`off` is a boolean, `010` is eight, `1:30` is ninety and `1e-3` is text; a key that stands twice
loses its first value. All but `1e-3` are refused here; that one is refused where it meets a
numeric field (`bench.runs.fields`), since it may be meant as text.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from fedbench.bench.system.errors import ConfigError

PACKAGE = "fedbench.search_spaces"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the readings that surprise people taken out."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or self.construct_object(key) != key.value:
                raise _refusal(key, f"the key {key.value!r} is not text: write it in quotes")
            if key.value in seen:
                raise _refusal(key, f"{key.value!r} stands twice in one mapping")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_plain_bool(self, node: yaml.ScalarNode) -> bool:
        text = node.value
        if text.lower() not in ("true", "false"):
            meant = str(text.lower() in ("yes", "on")).lower()
            raise _refusal(
                node, f"{text} is a boolean in YAML 1.1; write {meant}, or '{text}' as text"
            )
        return bool(text.lower() == "true")

    def construct_plain_int(self, node: yaml.ScalarNode) -> int:
        text = node.value
        digits = text.lstrip("+-")
        if ":" in text or (len(digits) > 1 and digits[0] == "0"):
            raise _refusal(
                node,
                f"{text} is not decimal in YAML 1.1; write a decimal number, or '{text}' as text",
            )
        return super().construct_yaml_int(node)

    def construct_plain_float(self, node: yaml.ScalarNode) -> float:
        if ":" in node.value:
            raise _refusal(
                node, f"{node.value} counts in sixties in YAML 1.1; write a decimal number"
            )
        return super().construct_yaml_float(node)

    def construct_plain_date(self, node: yaml.ScalarNode) -> str:
        raise _refusal(node, f"{node.value} is a date in YAML 1.1; write it in quotes")


for _tag, _construct in {
    "bool": _Loader.construct_plain_bool,
    "int": _Loader.construct_plain_int,
    "float": _Loader.construct_plain_float,
    "timestamp": _Loader.construct_plain_date,
}.items():
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)


def _refusal(node: yaml.Node, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; an empty text is an empty mapping.

    Args:
        text: the document.
        name: what error messages call it.

    Raises:
        ConfigError: for anything that is not one unambiguous mapping, as `name:line: reason`.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as err:
        line = f":{err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"{name}{line}: {err.problem or 'not YAML'}") from err
    except (yaml.YAMLError, ValueError) as err:
        raise ConfigError(f"{name}: {' '.join(str(err).split())}") from err
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: must be a mapping of names to values (got {value!r})")
    return value


def load_yaml(path: Path | Traversable) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ConfigError: if the file is missing, unreadable, not UTF-8, or refused by `parse_yaml`.
    """
    name = str(path) if isinstance(path, Path) else path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise ConfigError(f"{name}: no such file") from err
    except OSError as err:
        raise ConfigError(f"{name}: cannot be read ({err.strerror})") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{name}: is not UTF-8 text") from err
    return parse_yaml(text, name)


def shipped(folder: str = "") -> dict[str, Traversable]:
    """The YAML files in a folder of the installed package `fedbench.search_spaces`, by stem."""
    root = resources.files(PACKAGE)
    files = (root / folder if folder else root).iterdir()
    return {
        file.name.removesuffix(".yaml"): file
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(".yaml")
    }

"""Packages to start from: a method, objective or encoder that works, with its contract test."""

import keyword
import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from fedbench.bench.evaluation.objectives.names import OF_CLIENTS, SHIPPED
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.system.method_names import ALIASES

Kind = Literal["method", "objective", "backbone"]


def write_package(kind: Kind, name: str, folder: Path | None = None) -> list[Path]:
    """Write a package `fedbench-NAME` with an entry point into a new folder; return its files."""
    _check_name(kind, name)
    target = Path(name) if folder is None else folder
    words = [word.capitalize() for word in name.split("-")]
    module = "fedbench_" + name.replace("-", "_")
    class_name = "".join(words)
    major, minor, _ = version("fedbench-ssl").split(".")
    values = {
        "kind": kind,
        "name": name,
        "title": " ".join(words),
        "module": module,
        "class_name": class_name,
        "metric": name.replace("-", "_"),
        "version": f"{major}.{minor}",
        "next_minor": f"{major}.{int(minor) + 1}",
        "entry": {
            "method": module,
            "objective": f"{module}:{class_name}",
            "backbone": f"{module}:shape",
        }[kind],
    }
    templates = files("fedbench.bench.terminal") / "templates"
    places = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / kind / "README.md.txt",
        f"{module}/__init__.py": templates / kind / "module.py.txt",
        f"tests/test_{module}.py": templates / kind / "test.py.txt",
    }
    if kind == "method":
        places[f"{module}/{name}.yaml"] = templates / kind / "space.yaml.txt"
    try:
        target.mkdir(parents=True)
        for place, template in places.items():
            path = target / place
            path.parent.mkdir(exist_ok=True)
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{target} exists; name another folder by --out") from None
    except OSError as err:
        raise DataError(f"{target}: {err.strerror}") from err
    return [target / place for place in places]


def _check_name(kind: Kind, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is no name of a {kind}; use small letters, digits and hyphens, such as"
            f" my-{kind}"
        )
    from fedbench.bench.method import registry
    from fedbench.bench.nn.backbones import BACKBONES

    taken = {
        "method": {*registry.entries(), *ALIASES},
        "objective": {*SHIPPED, *OF_CLIENTS},
        "backbone": set(BACKBONES),
    }
    if name in taken[kind]:
        raise ConfigError(f"{kind} {name!r} is there already; choose another name")

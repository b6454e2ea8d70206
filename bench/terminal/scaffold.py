"""Files to start from: a package with its contract test, or a script that runs on a cluster."""

import keyword
import re
import shlex
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from fedbench.bench.evaluation.objectives.names import OF_CLIENTS, SHIPPED
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.system.method_names import ALIASES

Kind = Literal["method", "objective", "backbone", "slurm", "kubernetes", "machine"]
_SCRIPTS: dict[Kind, tuple[str, str]] = {
    "slurm": (
        "slurm.sh",
        "sbatch -N 4 {} sweep --grid heterogeneity --preset cross-device --gpus-per-trial 0.25",
    ),
    "kubernetes": ("rayjob.yaml", "kubectl apply -f {}"),
    "machine": ("machine.sh", "{}"),
}
"""What runs fedbench on more than one GPU: the script, and the command that starts it."""
_TEMPLATES = files("fedbench.bench.terminal") / "templates"


def write_start(kind: Kind, name: str, folder: Path | None = None) -> tuple[list[Path], str]:
    """Write a package `fedbench-NAME`, or the script of a job NAME, into a new folder.

    Returns:
        The files, and the command that comes next.
    """
    _check_name(kind, name)
    target = Path(name) if folder is None else folder
    if kind in _SCRIPTS:
        place, following = _SCRIPTS[kind]
        template = Template((_TEMPLATES / "cluster" / place).read_text(encoding="utf-8"))
        values = {"name": name, "version": version("fedbench-ssl")}
        texts = {place: template.safe_substitute(values)}  # a script has variables of its own
    else:
        place, following = "", "pip install -e {}"
        texts = _package(kind, name)
    try:
        target.mkdir(parents=True)
        for file, text in texts.items():
            path = target / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(0o755)
    except FileExistsError:
        raise ConfigError(f"{target} exists; name another folder by --out") from None
    except OSError as err:
        raise DataError(f"{target}: {err.strerror}") from err
    return [target / file for file in texts], following.format(shlex.quote(str(target / place)))


def _package(kind: Kind, name: str) -> dict[str, str]:
    """Return the texts of a package's files by their places in it."""
    module, class_name = "fedbench_" + name.replace("-", "_"), _class_name(name)
    major, minor, _ = version("fedbench-ssl").split(".")
    values = {
        "kind": kind,
        "name": name,
        "title": name.replace("-", " ").title(),
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
    places = {
        "pyproject.toml": _TEMPLATES / "pyproject.toml.txt",
        "README.md": _TEMPLATES / kind / "README.md.txt",
        f"{module}/__init__.py": _TEMPLATES / kind / "module.py.txt",
        f"tests/test_{module}.py": _TEMPLATES / kind / "test.py.txt",
    }
    if kind == "method":
        places[f"{module}/{name}.yaml"] = _TEMPLATES / kind / "space.yaml.txt"
    return {
        place: Template(template.read_text(encoding="utf-8")).substitute(values)
        for place, template in places.items()
    }


def _class_name(name: str) -> str:
    return "".join(map(str.capitalize, name.split("-")))


def _check_name(kind: Kind, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is no name for {kind}; use small letters, digits and hyphens, such as"
            f" my-{kind}"
        )
    if kind in _SCRIPTS:
        return
    from fedbench.bench.method import registry
    from fedbench.bench.nn.backbones import BACKBONES

    taken = {
        "method": {*registry.entries(), *ALIASES},
        "objective": {*SHIPPED, *OF_CLIENTS},
        "backbone": set(BACKBONES),
    }
    if name in taken[kind]:
        raise ConfigError(f"{kind} {name!r} is there already; choose another name")
    code, own = (_TEMPLATES / kind / "module.py.txt").read_text(encoding="utf-8"), _class_name(name)
    imports = " ".join(line for line in code.splitlines() if line.startswith("from "))
    if keyword.iskeyword(own) or own in re.findall(r"\w+", imports):
        raise ConfigError(f"{name!r} makes a class {own}, which has a meaning; choose another name")

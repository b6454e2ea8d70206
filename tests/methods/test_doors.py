"""A method that ships imports from two modules, a plugin from `fedbench.plugin` alone."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedbench.methods
from fedbench import plugin
from fedbench.bench import method, nn
from fedbench.bench.method import registry

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(fedbench.methods.__file__).parent.resolve()
BASES = {"autoencoder", "divergence"}
METHODS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__"})


def imported(path: Path) -> set[str]:
    """Modules of fedbench that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] == "fedbench"}


def reexported(module: ModuleType) -> set[str]:
    """Names that a module imports from others of fedbench."""
    tree = ast.parse(Path(module.__file__ or "").read_text())
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in lines if (node.module or "").startswith("fedbench.")]
    return {alias.name for node in ours for alias in node.names}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_imports_from_two_doors_and_at_most_one_base(name: str) -> None:
    others = imported(FOLDER / f"{name}.py") - {method.__name__, nn.__name__}
    assert len(others) <= 1
    extended = {"aligned"}  # a method that another one adds terms to
    assert others <= {f"fedbench.methods.{base}" for base in BASES | extended}


def test_every_file_but_the_bases_registers_a_method() -> None:
    sources = [Path(entry.source).resolve() for entry in registry.entries().values()]
    assert {path.stem for path in sources if path.parent == FOLDER} == {*METHODS} - BASES


def test_plugins_have_all_that_methods_here_may_import_once() -> None:
    for door in (method, nn):
        assert all(getattr(plugin, name) is getattr(door, name) for name in reexported(door))
    doors = reexported(plugin) - {"*"}, reexported(method), reexported(nn)
    assert sorted(set().union(*doors)) == sorted(plugin.__all__)
    assert all(hasattr(plugin, name) for name in plugin.__all__)
    with pytest.raises(AttributeError, match="'Methods'"):
        _ = plugin.Methods  # type: ignore[attr-defined]


def test_pages_and_templates_show_no_other_door() -> None:
    """`from fedbench import …` is for those who run methods."""
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("[!_]*.md"),
        *(ROOT / "docs").glob("[ht]*/*.md"),
    ]
    templates = [*(ROOT / "bench" / "terminal" / "templates").rglob("*.txt")]
    lines = [
        line
        for path in [*pages, *templates]
        for line in re.findall(r"^from fedbench(\S*) import (.+)$", path.read_text(), re.M)
    ]
    assert {module for module, _ in lines} == {".plugin"}
    assert {name for _, names in lines for name in names.split(", ")} <= {*plugin.__all__}

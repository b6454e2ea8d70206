"""A plugin imports from two modules: `fedbench.bench.method` and `fedbench.bench.nn`."""

import ast
from pathlib import Path

import pytest

import fedbench.methods
from fedbench.bench import method, nn
from fedbench.bench.method import registry

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


@pytest.mark.parametrize("name", METHODS)
def test_a_method_imports_from_two_doors_and_at_most_one_base(name: str) -> None:
    others = imported(FOLDER / f"{name}.py") - {method.__name__, nn.__name__}
    assert len(others) <= 1
    extended = {"aligned"}  # a method that another one adds terms to
    assert others <= {f"fedbench.methods.{base}" for base in BASES | extended}


def test_every_file_but_the_bases_registers_a_method() -> None:
    sources = [Path(entry.source).resolve() for entry in registry.entries().values()]
    assert {path.stem for path in sources if path.parent == FOLDER} == {*METHODS} - BASES

"""Hashes of the source of other packages, and files that change after they were imported."""

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest

from fedbench.bench.system.errors import PluginError, ResourceError
from fedbench.bench.system.source import check_source, keep_source, source_hash

LOSS = '"""A loss."""\n\nfrom .helper import SCALE\n\n\ndef loss(x):\n    return SCALE * x\n'
REWRITTEN = '# why\n"""Another."""\nfrom .helper import SCALE\ndef loss(x): return SCALE*x\n'
HELPER = "SCALE = 2\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a new name: a module, one that it imports, and one that nobody does."""
    folder = tmp_path / f"hashed_{tmp_path.name}"
    folder.mkdir()
    for name, text in (("__init__", ""), ("loss", LOSS), ("helper", HELPER), ("alone", HELPER)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def hashed(package: Path) -> str:
    source_hash.cache_clear()
    return source_hash(f"{package.name}.loss")


@pytest.mark.parametrize(
    ("file", "text", "same"),
    [
        ("loss", REWRITTEN, True),
        ("loss", LOSS.replace("* x", "+ x"), False),
        ("helper", "SCALE = 3\n", False),
        ("helper", "SCALE = 2  # two\n", True),
        ("alone", "SCALE = 3\n", True),  # nobody imports it
    ],
)
def test_code_counts_and_its_text_does_not(
    package: Path, file: str, text: str, *, same: bool
) -> None:
    before = hashed(package)
    (package / f"{file}.py").write_text(text)
    assert (hashed(package) == before) == same


CLASS = (
    "from pydantic import BaseModel\n\n\nclass Mine(BaseModel):\n    rate: float = 0.1\n\n"
    "    def loss(self, x):\n        return self.rate * x\n"
)
BASE = "class Base(BaseModel):\n    margin: float = 1.0\n\n\nclass Mine(Base)"
KNOB = CLASS.replace("0.1\n", "0.1\n    margin: float = 0.0\n")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (KNOB, True),
        (KNOB.replace("x\n", "x - self.margin\n"), False),
        (KNOB + "\n\ndef read(x):\n    return getattr(x, 'mar' + 'gin')\n", False),
        (CLASS.replace("0.1", "0.2"), False),  # it is read
        (KNOB.replace("class Mine(BaseModel)", BASE), False),
    ],
)
def test_a_field_counts_where_code_reads_it(package: Path, text: str, *, same: bool) -> None:
    module = f"{package.name}.loss"
    (package / "loss.py").write_text(CLASS)
    import_module(module)
    before = hashed(package)
    (package / "loss.py").write_text(text)
    sys.modules.pop(module)
    invalidate_caches()
    import_module(module)
    assert (hashed(package) == before) == same


def test_a_module_without_source_is_refused() -> None:
    with pytest.raises(PluginError, match="no_such_module"):
        source_hash("no_such_module")


@pytest.mark.parametrize(
    ("file", "text"),
    [("loss", "SCALE = (\n"), ("helper", "SCALE = 3\n")],  # one was saved half-way
)
def test_a_file_that_changes_after_its_import_is_noticed(
    package: Path, file: str, text: str
) -> None:
    """The hash is that of the imported source, though nobody asked for it before the edit."""
    module = f"{package.name}.loss"
    expected = hashed(package)
    import_module(module)
    keep_source(module)
    code = {"mine": expected}
    (package / f"{file}.py").write_text(HELPER + "# two\n" if file == "helper" else LOSS)
    check_source({"mine": module}, code)
    (package / f"{file}.py").write_text(text)
    assert hashed(package) == expected
    with pytest.raises(ResourceError, match="'mine'"):
        check_source({"mine": module}, code)
    check_source({"mine": module}, {"mine": "version 2"})  # its author says when it changes


def test_a_class_of_a_session_is_known_by_its_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has no file; what its functions do counts, their comments do not."""

    def hashed_session(code: str) -> str:
        module = ModuleType("a_session")
        exec(code, vars(module))
        monkeypatch.setitem(sys.modules, "a_session", module)
        source_hash.cache_clear()
        return source_hash("a_session")

    text = "class Mine:\n    @property\n    def scale(self): return {} in {{1, 2}}\n"
    first = hashed_session(text.format(1))
    assert hashed_session(text.format(1) + "# why\n") == first
    assert hashed_session(text.format(3)) != first
    for text in (
        "def f(x, t={}):\n    return x * t\n",
        "class A:\n    t = {}\n    def f(self):\n        return self.t\n",
        "T = {}\ndef f(x):\n    return x * T\n",
        "T = (0, {})\ndef f(x):\n    return x * T[1]\n",
        "class A:\n    @staticmethod\n    def f(x):\n        return x * {}\n",
        "from pydantic import BaseModel\nclass A(BaseModel):\n    t: int = {}\n"
        "    def f(self):\n        return self.t\n",
    ):
        assert hashed_session(text.format(1)) != hashed_session(text.format(2))
    text = "OTHER = {}\ndef f(x):\n    return x\n"
    assert hashed_session(text.format(1)) == hashed_session(text.format(2))

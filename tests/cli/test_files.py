"""Presets of users, and data sets that other packages bring along."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbench.bench.data.sources import base
from fedbench.bench.system import source
from fedbench.bench.system.errors import PluginWarning
from fedbench.bench.tuning.grid import load_grid, plan

from .conftest import Call, install

ROOT = Path(__file__).resolve().parents[2]
PRESET = "preset: {name}\ndescription: d\nsource: ours\nextends: demo\nvalues: {{{values}}}\n"
LR = "client.lr: {value: 0.01, from: ours}"


def example(page: str, language: str, start: str) -> str:
    """Return the block of a page that starts so."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return next(str(block) for block in blocks if block.startswith(start))


def test_a_preset_from_a_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "other name.yaml"
    file.write_text(example("files", "yaml", "preset: mine"), encoding="utf-8")
    record = call("config", "simclr", "--preset", file, "--json").json
    assert (record["preset"], record["client"]["lr"]) == ("mine", 0.01)
    assert record["sources"]["client.lr"] == "preset mine (ours)"
    assert record["method"]["temperature"] == 0.2
    assert record["client"]["local_epochs"] == 2  # of laptop
    file.write_text(PRESET.format(name="mine", values=LR), encoding="utf-8")
    changed = call("config", "simclr", "--preset", file, "--json").json
    assert (changed["client"]["lr"], changed["data"]["name"]) == (0.01, "digits")
    cells = plan(load_grid("heterogeneity"), preset=str(file), methods=["supervised"], seeds=[0])
    names = [cell.experiment.origin.preset for cell in cells]
    assert names == ["mine"] * 3  # the lists for demo, which it extends


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PRESET.format(name="demo", values=""), "'demo' is the name of another one"),
        (PRESET.format(name="mine", values=LR.replace("lr:", "lrr:")), "did you mean 'client.lr'?"),
        (PRESET.format(name="mine", values=LR.replace("ours", "me")), "from"),
        (PRESET.format(name="mine", values="").replace("demo", "dmo"), "did you mean 'demo'?"),
    ],
)
def test_bad_preset_files(call: Call, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    answer = call("config", "simclr", "--preset", file)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with a data set, and one of a name that is taken."""
    site, pack = tmp_path / "site", tmp_path / "site" / "files_pack"
    pack.mkdir(parents=True)
    (pack / "__init__.py").touch()
    (pack / "data.py").write_text(example("plugins", "python", "import numpy"), encoding="utf-8")
    points = dict.fromkeys(("blobs", "digits"), "files_pack.data:Blobs")
    install(site, "files-pack", "fedbench.datasets", points)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(source, "_IMPORTED", {})
    for name in ("files_pack", "files_pack.data"):  # that of another test
        sys.modules.pop(name, None)
    for cached in (base.entries, source.source_hash):
        cached.cache_clear()
    yield tmp_path
    base.entries.cache_clear()


@pytest.mark.filterwarnings("ignore::fedbench.bench.system.errors.PluginWarning")
def test_a_data_set_of_a_package(call: Call, package: Path) -> None:
    places = ("--data-dir", package / "data")
    assert "blobs" in {record["name"] for record in call("datasets", "--json", *places).json}
    prepared = call("data", "prepare", "blobs", "--json", *places).json
    assert (prepared["name"], prepared["num_train"], prepared["num_test"]) == ("blobs", 200, 50)
    words = ("--set", "data.name=blobs", "--set", "federation.num_rounds=0", "--workers", "1")
    store = ("--store", package / "store", "--json")
    row = call("run", "supervised", *words, *places, *store).json
    assert row["status"] == "ok"
    typo = call("run", "supervised", "--set", "data.name=blob", *places)
    assert "did you mean 'blobs'?" in typo.err


def test_a_name_that_is_taken_is_left_out_with_a_warning(package: Path) -> None:
    with pytest.warns(PluginWarning, match="plugin 'digits'"):
        assert "blobs" in base.entries()
    hashed = source.source_hash("files_pack.data")
    Path(str(sys.modules["files_pack.data"].__file__)).write_text("EDITED = 1\n", encoding="utf-8")
    source.source_hash.cache_clear()
    assert source.source_hash("files_pack.data") == hashed  # of what was imported

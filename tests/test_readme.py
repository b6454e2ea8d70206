"""Commands and Python blocks of the README, run with a cheap environment.

The build of the site runs the commands of the pages.
"""

import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedbench
from fedbench.bench.config.yaml_files import installed
from fedbench.bench.method import registry
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.tuning.scoring import names as scores
from fedbench.cli import main
from tests.bench.data.files import encoded
from tests.bench.data.test_datasets import write_parquet

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHEAP = {
    "FEDBENCH__FEDERATION__NUM_ROUNDS": "1",
    "FEDBENCH__DATA__TRAIN_SUBSET": "160",
    "FEDBENCH__DATA__TEST_SUBSET": "40",
    "FEDBENCH__CLIENT__BATCH_SIZE": "4",
    "FEDBENCH__MODEL__WIDTH": "4",
}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def load(name: str) -> ModuleType:
    """Import a module of docs/, as the build does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


def commands() -> list[str]:
    """Return every distinct line of the shell blocks."""
    lines = (line for block in blocks("sh") for line in block.splitlines() if line)
    return list(dict.fromkeys(lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a small Hub data set of CIFAR-10's shape."""
    root = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    (root / "store").mkdir()  # commands that only look must not need one before
    for split, count in (("train", 200), ("test", 50)):
        images = [*map(encoded, rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))]
        file = root / "cifar10" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, images, [i % 10 for i in range(count)])
    return root


def environment_of(place: Path) -> dict[str, str]:
    """Return the variables that make every run small and keep it in `place`."""
    return {
        **CHEAP,
        "FEDBENCH_STORE": str(place / "store"),
        "FEDBENCH_DATA_DIR": str(place / "data"),
        "RAY_ADDRESS": "127.0.0.1:1",  # no cluster, whatever runs on this machine
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def execute(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FEDBENCH")}
    environment |= environment_of(place)
    return subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, timeout=580
    )


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 700


@pytest.fixture(scope="module")
def board() -> str:
    """Return what the study of the board prints."""
    script, printed = ROOT / "leaderboards" / "studies" / "board" / "board.py", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["board.py"])
        runpy.run_path(str(script), run_name="__main__")
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


def test_the_board_shown_is_that_of_the_rows(board: str) -> None:
    (shown,) = (block for block in blocks("text") if "alpha 0.1" in block)
    assert shown in board


def test_the_board_shown_is_the_one_that_the_command_prints() -> None:
    """The rows that chose rates, and those of the earlier preset, do not count on a board."""
    store = ROOT / "leaderboards" / "results"
    groups = fedbench.leaderboard(store, preset="laptop", dataset="cifar10").board.groups
    printed: dict[str, list[str]] = {}
    for group in (group for group in groups if group.keys["num_rounds"]):
        for line in group.entries:
            half = (line.ci95_high - line.ci95_low) / 2
            text = f"{100 * line.mean:.1f}±{100 * half:.1f}"
            printed.setdefault(line.method, []).append(text)
    (shown,) = (block for block in blocks("text") if "alpha 0.1" in block)
    lines = [line for line in shown.splitlines() if "±" in line]
    assert {line.split()[0]: re.findall(r"\d+\.\d±\d+\.\d", line) for line in lines} == printed


def test_the_table_in_numbers_is_that_of_code_and_rows(board: str) -> None:
    (shown,) = re.findall(r"^\| methods, .*\n\|-.*\n\| (.*) \|$", README, flags=re.MULTILINE)
    addons = [entry.is_addon for entry in registry.entries().values()]
    counts = [
        f"{addons.count(False)}, {addons.count(True)}",
        len(scores()),
        len(installed("grids")),
    ]
    counts += [len(paper_cells()), len(fedbench.open_store(ROOT / "leaderboards/results").rows())]
    values = {
        name: [f"{float(value):.2f}".replace("-", "−") for value in re.findall(r"-?[\d.]+", line)]
        for name in ("of the board", "nearest to the preset's", "random")
        for (line,) in [re.findall(rf"^{name} +(.*)$", board, re.MULTILINE)]
    }
    (chosen, *_), (_, more, half), (_, most, wide) = values.values()
    lost = f"{chosen} points; a random one {most} ± {wide} more, the preset's {more} ± {half}"
    refuted = "; [refuted](leaderboards/studies/confirmation/README.md) for wider searches"
    assert shown.split(" | ") == [*map(str, counts), lost + refuted]


def test_badges_show_facts_of_this_version() -> None:
    badges = load("badges")
    written = {file.name: file.read_text("utf-8") for file in badges.FOLDER.iterdir()}
    assert badges.badges() == written
    assert {f"docs/static/badges/{name}" for name in written} == set(
        re.findall(r"!\[.*?\]\((.*?)\)", README)
    )


def test_links_between_pages_lead_somewhere() -> None:
    built = (ROOT / "docs" / "_build", ROOT / "docs" / "generated")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "leaderboards").rglob("*.md")]
    pages = [page for page in pages if not any(page.is_relative_to(folder) for folder in built)]
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            path = (page.parent / target).resolve()
            made = any(path.is_relative_to(folder) for folder in built)  # its build checks these
            assert made or path.exists(), f"{page.name}: {target}"


def test_the_configuration_reference_is_that_of_the_fields() -> None:
    """`python docs/reference.py` writes the page again."""
    reference = load("reference")
    assert reference.PAGE.read_text(encoding="utf-8") == reference.reference()


def test_the_page_of_the_papers_is_that_of_their_index() -> None:
    """`python docs/papers.py` writes the page again."""
    papers = load("papers")
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page()


@pytest.mark.slow
@pytest.mark.timeout(600)  # a machine may be busy
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            line,
            marks=[pytest.mark.extended]
            if "--watch-labels" in line or line.startswith("fedbench tune orchestra")
            else [],
        )
        for line in commands()
    ],
)
def test_command(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line.replace("PATH/TO/cifar10", str(place / "cifar10")), comments=True)
    if "--trials" in words:  # the first takes as long as the start of Ray
        words[words.index("--trials") + 1] = "1"
    if words[1] == "run" and "--workers" not in words:
        words += ["--workers", "1"]
    if words[1] in ("tune", "sweep") and "--dry-run" not in words:  # Ray is started once a process
        done = execute(words, place)
        code: int | str | None = done.returncode
        errors = done.stderr
    else:
        monkeypatch.chdir(place)
        for name, value in environment_of(place).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as stop:
            main(words[1:])
        code, errors = stop.value.code, capsys.readouterr().err
    needs_a_cluster = "--address" in words or "--gpus-per-trial" in words
    assert code == (3 if needs_a_cluster else 0), errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_python_blocks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for name, value in environment_of(place).items():
        monkeypatch.setenv(name, value)
    run, load, plugin = blocks("python")
    names: dict[str, Any] = {}
    exec(run, names)
    fedbench.export_encoder(names["result"].run_id, "encoder.safetensors")
    exec(load, names)
    assert names["features"].shape == (1, names["encoder"].card["feature_dim"])
    (place / "my_method.py").write_text(plugin)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(registry, "_ENTRIES", {**registry.entries()})
    importlib.import_module("my_method")
    assert registry.create("my-method", {}).needs()

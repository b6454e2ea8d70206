"""Commands, Python blocks, numbers and pictures of the README, run with a cheap environment.

The build of the site runs the commands of the pages; `python docs/pictures.py` draws anew.
"""

import html
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

import fedbench
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.method import Labels, registry
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.tuning.scoring import names as scores
from fedbench.cli import main
from tests.bench.data.files import encoded, table, write_hub

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
        content = table([*images], [i % 10 for i in range(count)])
        write_hub(root / "cifar10", **{f"{split}-00000-of-00001": content})
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
    """Words that are read, without tables and blocks: two minutes at 250 a minute."""
    prose = re.sub(r"^(```.*?^```|\|.*?)$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 500


def test_counts_are_those_of_this_version() -> None:
    addons = [entry.is_addon for entry in registry.entries().values()]
    for words in (
        f"{addons.count(False)} methods and {addons.count(True)} add-ons",
        f"{len(scores())} scores",
        f"{len(paper_cells())} published numbers",
    ):
        assert words in README


def test_the_table_is_that_of_the_page_with_its_sources() -> None:
    """Its last line, of licences, is there alone; so are links to the tools."""
    page = (ROOT / "docs" / "compare.md").read_text("utf-8")
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).splitlines() for text in (README, page)]
    shown, whole = ([line for line in lines if line.count("|") == 10] for lines in plain)
    assert shown == whole[: len(shown)]
    assert len(whole) == len(shown) + 1
    without_labels = [
        name
        for name, entry in registry.entries().items()
        if not entry.is_addon
        and registry.create(name, {}).needs().labels in (Labels.NONE, Labels.OPTIONAL)
    ]
    assert f"| self-supervised methods for images | {len(without_labels)} |" in README


def test_costs_are_those_of_the_rows() -> None:
    """Minutes are medians of a method's judging runs; SimCLR's rates and views are several.

    `fashion-small` has no stored runs, `cross-device` none that were finished.
    """
    rows = fedbench.open_store(ROOT / "leaderboards" / "results").frame()
    rows = rows[(rows.purpose == "evaluation") & (rows.num_rounds > 0) & (rows.seed < 10)]
    lines = [[*map(str.strip, line.split("|"))] for line in README.splitlines()]
    shown = {line[1].strip("`"): line[3:7] for line in lines if len(line) == 8}
    for preset in ("laptop", "cross-device-cpu"):
        runs = rows[(rows.preset == preset) & (rows.dataset == "cifar10")]
        on_gpu = runs.device.str.startswith("cuda")
        for where, column in ((~on_gpu, 0), (on_gpu, 1)):
            minutes = runs[where].groupby("method").wall_seconds.median() / 60
            if len(minutes):
                ends = [f"{x:.0f}" if x > 2 else f"{x:.1f}" for x in (minutes.min(), minutes.max())]
                assert shown[preset][column] == " to ".join(ends)
                if column == 0:
                    assert load_preset(preset).minutes == " to ".join(ends)
        simclr = runs[(runs.method == "simclr") & (runs.alpha == 0.1)]
        settings = simclr.config_json.str.replace(r'"seed": ?\d+', "", regex=True)
        means = 100 * simclr.groupby(settings).linear_acc.mean()
        reached = dict.fromkeys(f"{mean:.0f}" for mean in (means.min(), means.max()))
        assert shown[preset][2] == " to ".join(reached) + " %"
        assert shown[preset][3] == f"{100 * simclr.untrained_linear_acc.mean():.0f} %"


@pytest.mark.extended
@pytest.mark.parametrize("method", ["simclr", "orchestra"])
def test_runs_shown_are_those_of_the_command(method: str, tmp_path: Path) -> None:
    """Under `fashion-small`, seed 0; another platform may differ as two seeds do."""
    (line,) = re.findall(
        rf"^{method} +0\.1 +0 +([\d.]+) +([\d.]+) % +([\d.]+) % +ok$", README, re.M
    )
    trained = fedbench.run(method, preset="fashion-small", store=tmp_path, workers=1).metrics
    percent = [100 * (trained[name] or 0.0) for name in ("knn_acc", "linear_acc")]
    found = [trained["objective"], *percent]
    for value, shown, apart in zip(found, map(float, line), (0.05, 4.0, 4.0), strict=True):
        assert value == pytest.approx(shown, abs=apart)


def _interval(value: float, low: float, high: float) -> tuple[str, str]:
    return f"{value:.1f}", f"[{low:.1f}, {high:.1f}]".replace("-", "−")


@pytest.mark.slow
def test_findings_on_orchestra_are_those_of_the_rows() -> None:
    """Those on choosing are in tests/studies/test_findings.py."""
    findings = importlib.import_module("fedbench.leaderboards.studies.findings")
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    centroids = findings.centroids()["mean"]
    views, change = findings.views()["difference"], findings.change_by_views()
    share = findings.share_of_clusters()
    wide, kept = f"{-views['wide crops']:.1f}", f"{centroids['random']:.1f}"
    learnt = f"{centroids['learnt']:.1f}"
    apart_by_welch = {name: _interval(*each) for name, each in findings.not_pooled().items()}
    for text, sayings in {
        README: (
            f"is {wide} points behind",
            f"{learnt} %, with random centroids {kept} %, untrained {centroids['untrained']:.1f} %",
            "by k-NN {} points more {}".format(*apart_by_welch["clusters, k-NN"]),
        ),
        page: (
            f"Welch's test: {apart_by_welch['change by views'][1]}",
            f"{apart_by_welch['clusters'][1]} by Welch's test",
            "by {} points {}".format(*apart_by_welch["clusters, k-NN"]),
            f"({views['chosen rates']:.1f} points)".replace("-", "−"),
            f"{wide} points behind",
            f"{views['paper']:.1f} ahead",
            f"{change.change:.1f} points [{change.low:.1f}, {change.high:.1f}]",
            f"reaches {kept} %, with its own {learnt} %",
            f"have {centroids['untrained']:.1f} %",
            f"at most {share.high:.1f} of"
            f" {centroids['learnt'] - centroids['untrained']:.1f} points",
        ),
    }.items():
        for saying in sayings:
            assert saying in text, saying


def test_badges_show_facts_of_this_version() -> None:
    badges = load("badges")
    written = {file.name: file.read_text("utf-8") for file in badges.FOLDER.iterdir()}
    assert badges.badges() == written
    pictures = set(re.findall(r"!\[.*?\]\((.*?)\)", README))
    assert pictures >= {f"docs/static/badges/{name}" for name in written}


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


def test_the_map_in_contributing_is_that_of_the_rooms() -> None:
    """In the order in which they import one another; every file that it names is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in contracts["contracts"] if "containers" in each)
    rooms = [room for layer in layers for room in layer.split(" | ") if room != "testing"]
    assert re.findall(r"^\| `bench/(\w+)/`", text, re.MULTILINE) == rooms
    for path in re.findall(r"`((?:bench|methods|tests|docs|leaderboards|perf)/[\w/.-]*)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path


@pytest.mark.parametrize(("name", "made"), [("reference", "reference"), ("papers", "page")])
def test_a_page_is_that_of_its_source(name: str, made: str) -> None:
    """`python docs/NAME.py` writes it again: of the fields, and of the papers' index."""
    module = load(name)
    assert module.PAGE.read_text(encoding="utf-8") == getattr(module, made)()


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
    if words[1] == "sweep":  # `make demo` makes all of its cells
        words += ["--seeds", "0"]
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
    trained = fedbench.run("barlow-twins", preset="fashion-small", workers=1)
    assert trained.status == "ok"
    accuracy = trained.metrics["linear_acc"]
    assert accuracy is not None
    assert 0.1 < accuracy <= 1  # ten classes


@pytest.fixture(scope="module")
def drawn() -> Mapping[str, str]:
    return cast(Mapping[str, str], load("pictures").pictures())


def results(picture: str) -> list[str]:
    """Return the accuracies with their intervals that a picture shows, in order."""
    words = html.unescape(re.sub(r"<[^>]*>", "", picture)).replace("\xa0", " ")
    return re.findall(r"\d+\.\d ± \d+\.\d", words)


@pytest.mark.slow
def test_pictures_show_the_rows(drawn: Mapping[str, str]) -> None:
    """That of the terminal by its accuracies: how tables look is tested where they are made."""
    committed = {name: (load("pictures").FOLDER / name).read_text("utf-8") for name in drawn}
    terminal = drawn["terminal.svg"], committed["terminal.svg"]
    assert results(terminal[0]) == results(terminal[1])
    assert len(results(terminal[0])) == 5 + 3 * 5  # a board of five methods, and three over alpha
    for name in drawn.keys() - {"terminal.svg"}:
        assert drawn[name] == committed[name], name


@pytest.mark.slow
def test_pictures_are_small_and_load_nothing(drawn: Mapping[str, str]) -> None:
    for name, picture in drawn.items():
        assert len(picture) < 200_000, name
        assert not re.search(r"url\((?!#)|href=", picture), name

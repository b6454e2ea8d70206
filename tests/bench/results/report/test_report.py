"""The report page: the numbers of the store, in one file, in a browser as well."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from PIL import Image

import fedbench
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.results.leaderboard.formats import group_table
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.report.charts import short_titles, styles
from fedbench.bench.results.report.colours import looks
from fedbench.bench.results.report.content import partitions
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum
from tests.bench.results.conftest import run_of
from tests.browser import in_browser

EVIL = "</script><script>document.title='taken'</script><b>&amp;"


def fill(store: Store) -> None:
    """Fill a store with 3 methods, 3 alphas, 3 seeds, curves, a study, failed and diverged runs."""
    for alpha in (0.1, 1.0, 100.0):
        for index, spec in enumerate(("simclr", "byol", "supervised")):
            for seed in range(3):
                accuracy = 0.3 + 0.1 * index + 0.013 * seed**2 + alpha / 1e4
                row = run_of(
                    spec,
                    seed,
                    data__alpha=alpha,
                    linear_acc=accuracy,
                    knn_acc=accuracy - 0.05,
                    objective=accuracy / 3,
                    untrained_knn_acc=0.2,
                    bytes_up=1_234_567,
                    bytes_down=2_345_678,
                    wall_seconds=12.34 + seed,
                    rounds_done=10,
                    hardware="x86_64, 2 cores",
                    device="cpu",
                )
                store.write_row(row)
                point = {"round_index": 4, "bytes_up": 5, "bytes_down": 6, "metrics.knn_acc": 0.25}
                point["loss"] = 2.0 + seed
                store.write_curve(row.row_id, [point, {**point, "round_index": 9, "loss": 1.0}])
    store.write_row(run_of("shaky", status="diverged"))
    store.write_row(run_of("broken", status="error", error=EVIL))
    folder = store.cell_dir(row.row_id)
    (folder / "geometry.json").write_text(json_with_checksum(geometry(row)))
    for number in range(5):
        record = {"status": "ok", "seeds": [0], "params": {"client.lr": 0.1}, "seconds": 2.0}
        watched = {"knn_acc": 0.5 + 0.01 * number**2}
        store.write_trial("study", number, {**record, "objective": number / 10, "watched": watched})
    space = {"client.lr": {"type": "float", "low": 0.01, "high": 1.0, "log": True}}
    study = {"spec": "simclr", "preset": "demo", "sampler": "tpe", "space": space}
    store.write_study("study", study)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    """A filled store and its page."""
    root = tmp_path_factory.mktemp("rep ort")
    store, file = Store(root / "störe"), root / "page.html"
    fill(store)
    assert fedbench.report(file, store).num_rows == 29
    return store, file


def data_of(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(content)
    return data


def test_every_run_is_on_the_page_with_the_stores_numbers(written: tuple[Store, Path]) -> None:
    store, file = written
    rows, runs = store.rows(), data_of(file)["runs"]
    assert {"row_id", "linear_acc"} < runs.keys()
    for name, values in runs.items():
        if name == "at_chance":
            assert set(values) == {""}  # their losses ended low
        elif name != "started_at":
            assert values == [getattr(row, name) for row in rows]


def test_tables_are_the_leaderboards(written: tuple[Store, Path]) -> None:
    store, file = written
    data = data_of(file)
    for metric in ("linear_acc", "knn_acc", "objective"):
        board = fedbench.leaderboard(store, metric=metric).board
        shown = data["boards"][metric]["groups"]
        assert [group["title"] for group in shown] == [group.title for group in board.groups]
        for group, expected in zip(shown, board.groups, strict=True):
            table = group_table(expected)
            cells = dict(zip(group["header"], zip(*group["rows"], strict=True), strict=True))
            columns = zip(table.header, zip(*table.rows, strict=True), strict=True)
            assert all(cells[name] == column for name, column in columns)
            assert group["standings"] == expected.frame.standing.tolist()
            points = group["points"]
            assert points["mean"] == [entry.mean for entry in expected.entries]
            assert points["values"] == [list(entry.values) for entry in expected.entries]
    (sweep,) = data["sweeps"]["linear_acc"]
    assert (sweep["axis"], len(sweep["points"])) == ("alpha", 9)


def test_along_an_axis_means_are_whole_and_not_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fill(store)
    store.write_row(run_of("byol", 3, data__alpha=1.0, status="diverged"))
    store.write_row(run_of("alone", 3, data__alpha=1.0, linear_acc=0.5))
    fedbench.report(tmp_path / "page.html", store)
    (sweep,) = data_of(tmp_path / "page.html")["sweeps"]["linear_acc"]
    assert {p["name"] for p in sweep["points"]} == {"byol", "simclr", "supervised"}
    means = {p["x"]: p["mean"] for p in sweep["points"] if p["name"] == "byol"}
    assert [x for x, mean in means.items() if mean is None] == [1.0]


def test_curves_and_studies(written: tuple[Store, Path]) -> None:
    store, file = written
    assert fedbench.studies(store)._repr_html_().count("<tr") == 2
    data = data_of(file)
    curves = [*data["curves"].values()]
    knn = [i for i, m in enumerate(curves[0]["metric"]) if m == "knn_acc"]
    assert [curves[0]["round"][i] for i in knn][:3] == [0, 5, 10]
    assert [curves[0]["mean"][i] for i in knn][:2] == pytest.approx([0.2, 0.25])
    ends = (22 + 3_580_245) / 2  # of the record of the last round, and of the row
    assert [curves[0]["gb"][i] for i in knn][:3] == pytest.approx([0, 11e-9, ends / 1e9])
    losses = next(iter(data["losses"].values()))
    assert losses["method"] == [each for each in ("supervised", "byol", "simclr") for _ in range(2)]
    assert (losses["round"][:2], losses["mean"][:2]) == ([5, 10], [3.0, 1.0])  # (2 + 3 + 4) / 3
    (study,) = data["studies"]
    assert (study["best"], study["best_objective"], study["seconds"]) == (4, 0.4, 10.0)
    assert study["correlations"][0]["n"] == 5
    assert study["correlations"][0]["spearman"] == pytest.approx(1.0)
    assert [trial["best"] for trial in study["trials"]] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert len(data["papers"]["printed"]) == len(paper_cells())


def test_the_page_needs_nothing_else(written: tuple[Store, Path]) -> None:
    store, file = written
    text = file.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert len(text) < 1_000_000
    assert EVIL not in text
    assert f"{store.root}" not in text
    before = file.read_bytes()
    fedbench.report(file, store)
    assert file.read_bytes() == before


def geometry(row: Row) -> dict[str, Any]:
    histogram = {"median": 80.0, "mean": 81.0, "edges": [0.0, 90.0, 180.0], "counts": [3, 1]}
    points = {"points": [[0.5, 1.5], [2.0, 3.0]], "labels": [0, 1], "class_names": ["a", "b"]}
    kinds = {"plain": histogram, "centred": histogram}
    named = {"run_id": row.row_id, "title": row.method, "setting": "demo", "clients": []}
    return {**named, "angles": kinds, "map": points}


def test_angles_and_maps_where_there_are(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for seed in range(2):
        row = run_of(seed=seed, linear_acc=0.5)
        store.write_row(row)
        text = json_with_checksum(geometry(row)) if seed == 0 else "{}"
        store.cell_dir(row.row_id).mkdir(parents=True)
        (store.cell_dir(row.row_id) / "geometry.json").write_text(text)
    (problem,) = fedbench.report(file, store).problems
    assert "geometry.json" in problem
    (record,) = data_of(file)["geometry"]
    assert record["angles"]["plain"]["counts"] == [3, 1]
    assert record["map"]["points"] == [[0.5, 1.5], [2.0, 3.0]]


def test_labels_of_clients_are_those_of_the_runs(tmp_path: Path) -> None:
    digits = load_dataset("digits", tmp_path)
    row, again = (
        run_of(seed=seed, data__num_clients=3, dataset_revision=digits.revision) for seed in (1, 2)
    )
    other = run_of(data__num_clients=3, dataset="elsewhere", dataset_revision="0" * 64)
    store = Store(tmp_path / "store")
    many = run_of(data__num_clients=2000, dataset_revision=digits.revision)
    for each in (again, row, other, many):
        store.write_row(each)
    (record,), (impossible, missing) = partitions(store, store.frame(), tmp_path)
    assert impossible.startswith("Clients of digits are not shown, dirichlet-balanced partition:")
    settings = {"data.num_clients": 3, "data.alpha": 0.1}
    expected = fedbench.partition(set=settings, seed=1, data_dir=tmp_path)
    assert record["counts"] == expected.as_dict()["class_counts"]
    assert record["title"].endswith("3 clients · seed 1")
    assert missing.startswith("Clients of elsewhere are not shown: its labels are not in the data")
    # A picture of the classes, unless the page must not show images.
    page = tmp_path / "page.html"
    fedbench.report(page, store, data_dir=tmp_path, images=False)
    assert data_of(page)["pictures"] == []
    fedbench.report(page, store, data_dir=tmp_path)
    (shown,) = data_of(page)["pictures"]
    assert "1,201 training and 596 test images of 1x8x8 · 10 classes" in shown["title"]
    head, _, picture = shown["picture"].partition(",")
    assert head == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(picture))).format == "PNG"


def test_short_titles_say_what_their_preset_does_not() -> None:
    budgets = [f"digits · preset mine · alpha {a} · {n} rounds" for a in (0.1, 1) for n in (5, 9)]
    other = "digits · preset yours · alpha 1 · 12 rounds"
    assert short_titles([*budgets, other]) == [
        "preset mine · alpha 0.1 · 5 rounds",
        "preset mine · alpha 0.1 · 9 rounds",
        "preset mine · alpha 1 · 5 rounds",
        "preset mine · alpha 1 · 9 rounds",
        "preset yours · alpha 1",
    ]
    assert short_titles(budgets[:2]) == ["5 rounds", "9 rounds"]
    assert short_titles(budgets[:1]) == ["digits"]


def test_lines_of_a_method_share_its_colour_and_the_first_has_its_symbol() -> None:
    labels = {"byol": "byol", "byol (lr=1)": "byol", "mim (lr=1)": "mim", "mim (lr=2)": "mim"}
    found, alone = styles(labels, {"mim", "simclr"}), looks(["byol", "mim", "simclr"])
    assert {name: look.colour for name, look in found.items()} == {
        name: alone[labels.get(name, name)].colour for name in (*labels, "simclr", "mim")
    }
    assert found["byol"] == alone["byol"] != found["byol (lr=1)"]
    assert found["mim"] == found["mim (lr=1)"] == alone["mim"] != found["mim (lr=2)"]


def test_the_page_shows_one_line_of_each_method(tmp_path: Path) -> None:
    """The one with the most seeds, however good another is."""
    store = Store(tmp_path / "store")
    for lr, accuracies in ((0.1, (0.2, 0.3)), (0.2, (0.9,))):
        for seed, accuracy in enumerate(accuracies):
            store.write_row(run_of(seed=seed, client__lr=lr, linear_acc=accuracy))
    fedbench.report(tmp_path / "page.html", store)
    (group,) = data_of(tmp_path / "page.html")["boards"]["linear_acc"]["groups"]
    assert dict(zip(group["points"]["name"], group["points"]["main"], strict=True)) == {
        "simclr (lr=0.2)": False,
        "simclr (lr=0.1)": True,
    }


STEPS = r"""
const texts = (row) => [...row.cells].map((cell) => cell.textContent);
const rowsOf = (label) => all(`table[aria-label="${label}"] tbody tr`).map(texts);
const heads = (label) => all(`table[aria-label="${label}"] thead th`);
const head = (label, title) => heads(label).find((cell) => cell.textContent === title);
const search = (label, words) => {
  const input = document.querySelector(`input[aria-label="Filter ${label}"]`);
  input.value = words; input.dispatchEvent(new Event("input"));
  const found = rowsOf(label); input.value = ""; input.dispatchEvent(new Event("input"));
  return found;
};
const shut = all("figure:not([hidden]):has(svg) h3").map((each) => each.textContent);
for (const each of all("details.part")) each.open = true;
await pause();
const out = { shut, title: document.title, runs: rowsOf("Runs"), board: rowsOf("Leaderboard") };
out.heads = heads("Runs").map((cell) => cell.textContent);
out.filtered = search("Runs", "byol alpha=100").length;
out.nothing = search("Runs", "nosuchword").length;
head("Leaderboard", "method").querySelector("button").click();
out.byMethod = rowsOf("Leaderboard"); out.sort = head("Leaderboard", "method").ariaSort;
head("Leaderboard", "linear %").querySelector("button").click();
out.byAccuracy = rowsOf("Leaderboard");
out.charts = all("figure svg").length;
out.marks = all("figure svg path, figure svg circle").length;
out.focusable = all("th button, input, select, summary").every((n) => n.tabIndex === 0);
out.titles = all("figure:not([hidden]) h3").map((head) => head.textContent);
const picture = document.querySelector("figure:has(#bytes) .plot > svg:last-child");
const parsed = new DOMParser().parseFromString(svgText("a < b", [picture]), "image/svg+xml");
const root = parsed.documentElement;
out.svg = [root.tagName, root.querySelectorAll("path").length];
out.svg.push(root.querySelector("title").textContent, /var\(/.test(root.outerHTML));
out.csv = csvText(["a", "linear %"], [["=b,c", ["50.0", 0.5]], ["d", ""]]);
choose("hide", "byol"); choose("metric", "knn_acc");
out.link = location.hash;
out.without = [rowsOf("Leaderboard").length, all(".methods summary")[0].textContent];
const warned = () => all("p.warning:not([hidden])").map((each) => each.textContent);
out.unwarned = warned(); choose("cell", "foo"); out.warned = warned();
choose("hide"); choose("metric"); choose("cell");
out.nolink = location.hash;
return out;
"""


@pytest.mark.browser
def test_in_a_browser(written: tuple[Store, Path]) -> None:
    store, out = written[0], in_browser(written[1], STEPS)
    assert out["errors"] == []
    assert out["title"].startswith("fedbench")
    assert (out["filtered"], out["nothing"]) == (3, 0)
    assert out["charts"] >= 12
    opened = "Methods,Along an axis,Training loss"
    assert ",".join(out["shut"]) == opened  # the rest is drawn when it is opened
    assert ",".join(out["titles"]) == (
        f"{opened},Accuracy against bytes,Accuracy against minutes,Over rounds and bytes,"
        "Methods and cells,Mean ranks,Objective against accuracy,Angles between classes,"
        "Map of test features,Tuning history,Parallel coordinates of trials,"
        "Objective against accuracy of trials"
    )
    assert out["svg"] == ["svg", ANY, "a < b", False]
    assert out["svg"][1] >= 3
    assert out["csv"] == 'a,linear\n"\'=b,c",0.5\nd,\n'
    assert out["link"] == "#hide=byol&metric=knn_acc"
    assert out["nolink"] in ("", "#")
    assert out["unwarned"] == []
    assert out["warned"] == ["Not on this page, so that the first of the list is shown: Cell foo."]
    # Three cells: a title each, two methods of three; of the runs that failed, their two lines.
    assert out["without"] == [len(out["board"]) - 3, "Lines shown: 4 of 5"]
    assert out["marks"] > 40
    assert out["focusable"]
    assert out["wide"] == 0
    assert out["sort"] == "ascending"

    rows = store.rows()
    assert len(out["runs"]) == len(rows)
    place = {name: index for index, name in enumerate(out["heads"])}
    for row, cells in zip(rows, out["runs"], strict=True):
        assert cells[place["run"]] == row.row_id
        assert cells[place["error"]] == (row.error or "")
        for title, value in (("linear %", row.linear_acc), ("k-NN %", row.knn_acc)):
            shown = "" if value is None else f"{value * 100:.1f}"
            assert cells[place[title]] == shown

    titles = [cells for cells in out["board"] if len(cells) == 1]
    assert len(titles) == 3

    def groups(table: list[list[str]]) -> list[list[str]]:
        methods: list[list[str]] = []
        for cells in table:
            if len(cells) == 1:
                methods.append([])
            elif cells[0]:  # ranked
                methods[-1].append(cells[1])
        return methods

    # Best first; by name; and by accuracy again: always within a class.
    assert groups(out["board"])[1] == ["supervised", "byol", "simclr"]
    assert groups(out["byMethod"])[1] == ["byol", "simclr", "supervised"]
    assert groups(out["byAccuracy"])[1] == ["supervised", "byol", "simclr"]


@pytest.mark.browser
def test_runs_that_have_an_objective_alone_have_no_curves(store: Store, tmp_path: Path) -> None:
    for seed in range(3):
        store.write_row(run_of(seed=seed, objective=0.1 * seed))
    fedbench.report(tmp_path / "page.html", store)
    open_all = "for (const part of all('details.part')) part.open = true; await pause();"
    titles = "all('figure:not([hidden]) h3').map((head) => head.textContent)"
    parts = "all('nav a:not([hidden])').map((link) => link.textContent)"
    heads = "all(':is(section, details.part):not([hidden]) h2').map((head) => head.textContent)"
    steps = f"const parts = {parts}, heads = {heads}; {open_all}"
    steps += f"return {{ parts, heads, titles: {titles} }};"
    out = in_browser(tmp_path / "page.html", steps)
    assert (out["titles"], out["errors"]) == (["Methods"], [])
    # A heading, and a link to it, for what there is: neither curves nor several cells.
    shown = ["Board", "Tables", "Clients", "What ran", "Published numbers"]
    assert (out["parts"], out["heads"]) == (shown, shown)


@pytest.mark.browser
def test_on_a_phone(written: tuple[Store, Path]) -> None:
    assert in_browser(written[1], "return {};", width=500)["wide"] == 0

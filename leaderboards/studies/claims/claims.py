"""Print docs/claims.md: the papers' claims beside what the rows in leaderboards/results show.

Usage: `python leaderboards/studies/claims/claims.py [--store DIR] > docs/claims.md`.
Every figure is computed from the rows, those of the study of selection for the two claims that it
can answer.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedbench import open_store
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.method import registry
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.chance import marks
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.leaderboards.studies.board import board
from fedbench.leaderboards.studies.cells import PRESET, STORE, blind, counted, linear
from fedbench.leaderboards.studies.cells import unequal as unequal_runs
from fedbench.leaderboards.studies.compare import LEVEL, compare, compare_pairs
from fedbench.leaderboards.studies.long_training import long_training
from fedbench.leaderboards.studies.participation import participation
from fedbench.leaderboards.studies.selection import selection

SEEDS = range(10)
"""Seeds that judge; those from 100 on choose settings."""


@dataclass(frozen=True)
class Side:
    """A method's runs under `laptop` as it was in 2026-11.

    Attributes:
        spec: method spec.
        set: values over the preset's.
    """

    spec: str
    set: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, rows: Mapping[str, Row]) -> list[Row]:
        """Return the rows of all seeds that have run, in their order."""
        found = []
        revisions = {row.dataset_revision for row in rows.values()}
        config = resolve(self.spec, preset=PRESET, set=self.set, environ={}).config
        for seed in SEEDS:
            seeded = config.model_copy(update={"seed": seed})
            ids = {row_id(seeded, revision) for revision in revisions}
            found += [rows[name] for name in sorted(ids & rows.keys())]
        return found


@dataclass(frozen=True)
class Test:
    """A comparison of linear accuracies over all seeds that there are, unpaired.

    Attributes:
        name: what stands in the table.
        first: the side that the claim is about.
        second: what it is compared with.
        published: the paper's difference in points, first minus second.
        sign: the sign that the claim gives the difference; None = that of `published`; 0 = the
            difference is within `margin`.
        margin: points.
    """

    name: str
    first: Side
    second: Side
    published: float
    sign: int | None = None
    margin: float = 0.0

    @property
    def expected(self) -> int:
        """The sign that supports the claim; 0 for none."""
        return int(np.sign(self.published)) if self.sign is None else self.sign


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        text: the claim, and where the paper makes it.
        tests: comparisons; it is supported if all are.
        study: prints a table of its own in place of tests: its header and lines.
        note: why it cannot be tested here, or what to keep in mind.
        added: the claim has a letter after the number before it, since it came later.
        answer: a line for the table of all claims, from the lines of its own; None = from its
            comparisons.
        decided_by: how the one line begins that the claim is about; empty = all lines decide.
    """

    text: str
    tests: Sequence[Test] = ()
    study: Callable[[Sequence[Row], Store], tuple[list[str], list[list[str]]]] | None = None
    note: str = ""
    added: bool = False
    answer: Callable[[list[list[str]]], str] | None = None
    decided_by: tuple[str, ...] = ()


def line_of(lines: list[list[str]], *names: str) -> list[str]:
    """Return the line that begins with these cells."""
    return next(line for line in lines if line[: len(names)] == [*names])


def reason(line: list[str]) -> str:
    """Return why a line has no verdict."""
    return line[-1].partition(": ")[2]


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim from those of its comparisons; empty ones do not count."""
    words = [verdict.split(":")[0] for verdict in verdicts if verdict]
    if "contradicted" in words:
        return "contradicted"
    if len({*words}) == 1:
        return words[0]
    return "cannot be decided" if "cannot be decided" in words else "not settled"


ORCHESTRA, SIMCLR, PFEDAE = Side("orchestra"), Side("simclr"), Side("pfedae")
SOURCES = {"labels": "hsu", "rotation": "rotation", "both": "joint"}


def _orchestra(name: str, published: float, sign: int, **fields: Any) -> Test:
    changed = Side("orchestra", {f"method.{key}": value for key, value in fields.items()})
    return Test(name, changed, ORCHESTRA, published, sign, margin=1.5 if sign == 0 else 0.0)


def _verification(source: str, published: Sequence[float]) -> list[Test]:
    settings = {"data.partition": SOURCES[source]}
    methods = ("spectral", "simsiam", "simclr")
    return [
        Test(f"{m}+uv − {m}", Side(f"{m}+uv", settings), Side(m, settings), gain)
        for m, gain in zip(methods, published, strict=True)
    ]


@cache
def selection_cells() -> dict[tuple[str, float], list[list[Row]]]:
    """Return the rows of the study of selection, by method and alpha."""
    return selection.cells(open_store(selection.STORE).rows())


@cache
def board_runs() -> Any:
    """Return the judging runs of the board: five seeds, 10,000 test images, equal crops."""
    return board.judged(open_store(STORE))


def blind_on_the_board(runs: Any, *methods: str) -> str:
    """Say which methods have runs of the board that end at chance; empty if none."""
    by_method = runs.groupby("method")["at_chance"]
    return blind({m: (int(by_method.sum()[m]), int(by_method.size()[m])) for m in methods})


def on_the_board(first: str, second: str, published: str) -> tuple[list[str], list[list[str]]]:
    """Return the differences of two methods of the board, a line for each alpha.

    Args:
        first: a method.
        second: another one, or `best` for the best that reads no label.
        published: the paper's difference in points.
    """
    groups: dict[str, Any] = {}
    compared, unlearnt = [], {}
    for alpha, runs in board_runs().groupby("alpha"):
        found = board.grouped(runs)
        free = {name: group for name, group in found.items() if name != "supervised"}
        other = max(free, key=lambda name: free[name].mean()) if second == "best" else second
        compared.append((f"{alpha:g}", first, other))
        unlearnt[f"{alpha:g}"] = blind_on_the_board(runs, first, other)
        groups |= {f"{alpha:g} {name}": group for name, group in found.items()}
    pairs = [(f"{a} {x}", f"{a} {y}") for a, x, y in compared if f"{a} {x}" in groups]
    tests, lines = compare_pairs(groups, pairs), []
    for alpha, x, y in compared:
        line = [alpha, f"{x} − {y}"]
        pair = f"{alpha} {x}", f"{alpha} {y}"
        if pair not in pairs:
            below = f"no verdict: {x} ends below its random init"
            lines.append([*line, "", "", "", "", published, below])
            continue
        test, means = tests.loc[pair], [groups[name].mean() for name in pair]
        numbers = [f"{means[0]:.1f}, {means[1]:.1f}"]
        numbers += [f"{test.difference:+.1f} [{test.low:.1f}, {test.high:.1f}]", f"{test.p:.2g}"]
        numbers += [f"{test.detectable:.1f}", published]
        ahead = (
            "supported" if published.startswith("+") == (test.difference > 0) else "contradicted"
        )
        verdict = ahead if test.p < LEVEL else "not settled"
        verdict = f"no verdict: {unlearnt[alpha]}" if unlearnt[alpha] else verdict
        lines.append([*line, *(text.replace("-", "−") for text in numbers), verdict])
    return BOARD_HEADER, lines


def few_classes() -> tuple[list[str], list[list[str]]]:
    """Return what each method of the board loses from alpha 100 to 0.1, beside orchestra."""
    lines, runs = [], board_runs()
    table, ends = board.few_classes(runs), runs[runs["alpha"].isin([100.0, 0.1])]
    for method, line in table.sort_values("difference").iterrows():
        lost = f"{line.difference:+.1f} [{line.low:.1f}, {line.high:.1f}]"
        if method == "orchestra":
            lines.append(["orchestra", lost.replace("-", "−"), "", "", ""])
            continue
        more, low, high, p = (line[f"beyond orchestra {k}"] for k in ("change", "low", "high", "p"))
        cells = [str(method), lost, f"{more:+.1f} [{low:.1f}, {high:.1f}]", f"{p:.2g}"]
        verdict = "supported" if more > 0 else "contradicted"
        verdict = verdict if p < LEVEL else "not settled"
        if unlearnt := blind_on_the_board(ends, "orchestra", str(method)):
            verdict = f"no verdict: {unlearnt}"
        lines.append([cells[0], *(text.replace("-", "−") for text in cells[1:]), verdict])
    return ["method", "loss", "beyond orchestra's", "p (Holm)", "verdict"], lines


def figure_4() -> tuple[list[str], list[list[str]]]:
    """Return the correlation of objective and k-NN accuracy over the runs of each cell."""
    lines, means = [], []
    for (method, alpha), table in selection_cells().items():
        runs = [row for entry in table for row in entry if row.status == "ok"]
        pairs = np.array([(row.objective, row.knn_acc) for row in runs], dtype=float)  # (n, 2)
        before = np.array([row.untrained_knn_acc for row in runs], dtype=float)  # of its own seed
        learnt = pairs[pairs[:, 1] >= before + LEARNT / 100]
        both = [float(np.corrcoef(each.T)[0, 1]) for each in (pairs, learnt)]
        means.append(both)
        counts = f"{len(pairs)}, {len(learnt)}"
        lines.append([method, f"{alpha:g}", counts, *(f"{value:.2f}" for value in both), "+0.87"])
    mean = [f"{value:.2f}" for value in np.mean(means, axis=0)]
    return FIGURE_4_HEADER, [*lines, ["mean", "", "", *mean, "+0.87"]]


def matched() -> tuple[list[str], list[list[str]]]:
    """Return what skew costs at matched configurations of the study of selection."""
    found = selection_cells()
    lost = {}
    for method in selection.OWN:
        rates = [each.get("client.lr", 0.0) for each in selection.configurations(method)]
        kept = np.array(rates) <= HIGHEST_RATE
        accuracy = {a: selection.accuracies(found[method, a]) for a in selection.ALPHAS}
        lost[method] = (accuracy[100.0] - accuracy[0.1])[kept].mean(axis=1)
    sides = {m: [row for e in found[m, 0.1] for row in e if row.status == "ok"] for m in lost}
    reasons = {m: unequal_runs(sides["orchestra"], rows) for m, rows in sides.items()}
    store = open_store(selection.STORE)
    both = {m: [r for a in selection.ALPHAS for e in found[m, a] for r in e] for m in lost}
    chance = counted(both, marks(store, store.rows()))
    table = compare({method: -losses for method, losses in lost.items()}, "orchestra")
    lines = []
    for method, losses in lost.items():
        half = stats.t.ppf(1 - LEVEL / 2, len(losses) - 1) * stats.sem(losses)
        line = [method, str(len(losses)), f"{losses.mean():+.2f} ± {half:.2f}"]
        if reasons[method]:
            line += ["", "", "", f"no verdict: {reasons[method]}"]
        elif method in table.index:
            test = table.loc[method]
            line += [f"{test.difference:+.2f} ({test.low:.2f} to {test.high:.2f})"]
            unlearnt = blind({name: chance[name] for name in ("orchestra", method)})
            verdict = f"no verdict: {unlearnt}" if unlearnt else test.verdict
            line += [f"{test.p:.2g}", f"{test.detectable:.1f}", verdict]
        lines.append([text.replace("-", "−") for text in line + [""] * (7 - len(line))])
    return MATCHED_HEADER, lines


LEARNT = 3.0
"""Points of k-NN accuracy above random init from which on a run has learnt something."""
HIGHEST_RATE = 0.1
"""Learning rate up to which configurations are matched; above it many learn nothing."""
FIGURE_4_HEADER = ["method", "α", "runs, learnt", "R", "R of those that learnt", "paper"]
MATCHED_HEADER = ["method", "configurations", "loss", "beyond orchestra's", "p (Holm)"]
MATCHED_HEADER += ["seen at 0.8", "verdict"]
BOARD_HEADER = ["α", "comparison", "linear", "difference", "p (Holm)", "seen at 0.8", "paper"]
BOARD_HEADER += ["verdict"]
BOARD_NOTE = (
    "From [the board](../leaderboards/studies/board/README.md): five seeds, 10,000 test images, "
    "equal crops of 8 to 100 %, rates by one rule; its test, with the variance pooled over all "
    "groups unless Brown and Forsythe's test finds them unequal."
)
PAPERS: Mapping[str, Sequence[Claim]] = {
    "Orchestra (Lubana et al. 2022, https://arxiv.org/abs/2205.11506)": [
        Claim(
            "Orchestra has the highest linear accuracy of the federated methods without labels "
            "(table 1, CIFAR-10, cross-device).",
            study=lambda _, store: long_training.order_lines(store.root),
            answer=lambda lines: (
                f"{line_of(lines, 'published', 'simclr')[4]} points beside simclr with published"
                f" rates, {line_of(lines, 'alike', 'simclr')[4]} tuned alike; the paper has +13.2"
            ),
            note="Published recipe: rates, crops and heads are each paper's, so spectral's crops "
            "are wider; p over all lines of a recipe; the test is the pooled one of the plan. "
            "`orchestra random` has random centroids and so is at chance by construction; it keeps "
            "45.8 of 46.7 % all the same. `aligned` is not the paper's. Second recipe, alike: "
            "equal crops, rates chosen by the last loss. Two verdicts are withdrawn: that over "
            "aligned, at a published rate that is ours, since Welch's test does not have it; that "
            "over byol, whose rate is the largest tried, until a larger one has run. "
            "`simclr wide` is simclr with the views `simclr-m` (crops of 8 to 100 %) beside "
            "orchestra with these, whose tasks are marked as at chance with them "
            "([log](../leaderboards/studies/log.md)). "
            "α = 100, simsiam and rotpred are left out, "
            "since the budget is spent. In the published recipe orchestra's seeds 0 to 2 are CPU "
            "runs, those of `orchestra random` and byol's seeds 0 to 3 are GPU runs, the others "
            "mixed; in the second all are CPU runs but those of orchestra that serve both.",
        ),
        Claim(
            "Orchestra learns its own tasks in the setting of claim 1 (a gate before its runs).",
            study=lambda _, store: long_training.gate_lines(store.root),
            answer=lambda lines: "at the paper's rate, 0.003; at 0.01 it does not",
            decided_by=("0.003",),
            note="Means over the last five rounds of seeds 0 to 2. A net without information "
            "reaches ln 32 = 3.47 and ln 4 = 1.39; supported if both lie more than a tenth below, "
            "under 3.12 and 1.25.",
            added=True,
        ),
        Claim(
            "Orchestra's lead is the same with both recipes (asked here).",
            study=lambda _, store: long_training.recipe_lines(store.root),
            answer=lambda lines: (
                f"tuned alike, its lead changes by {line_of(lines, 'simclr')[3]} points over simclr"
                f" and by {line_of(lines, 'byol')[3]} over byol"
            ),
            note="The runs of claim 1, those of orchestra in both recipes: what a method gains by "
            "the second recipe, orchestra loses against it. Variance pooled over all groups, those "
            "with wide crops among them.",
            added=True,
        ),
        Claim(
            "A cheap preset predicts the order of methods in longer training, and in the paper's "
            "table 1 (asked here).",
            study=lambda _, store: long_training.agreement_lines(store.root),
            answer=lambda lines: (
                f"τ {lines[1][3]} and {lines[3][3]} with longer training, {lines[0][3]} with "
                "table 1: not shown, and views differ as well as length"
            ),
            note="The board under `laptop` is the cheap preset, claim 1's recipes are longer "
            "training; α = 0.1. The board crops 8 to 100 % of an image for all methods, the long "
            "recipes mostly 50 to 100 %, so that views differ as well as length: the one pair run "
            "long with the board's views, orchestra and simclr, agrees with the board. Kendall's τ "
            "over the methods that both have, 95 % by a bootstrap over seeds; the paper has one "
            "value per method. So few methods can only tell strong agreement from none.",
            added=True,
        ),
        Claim(
            "Training with labels is more accurate than Orchestra (table 1).",
            study=lambda *_: on_the_board("supervised", "orchestra", "+9.3"),
            answer=lambda lines: (
                f"{lines[1][3]} points at α = 1, {lines[2][3]} at 100: {reason(lines[1])}"
            ),
            note=f"{BOARD_NOTE} At α = 0.1 `supervised` failed: the rule that picks rates without "
            "validation labels chose 0.1, which diverges when clients hold few classes; with 0.01 "
            "it has 40 % (seeds 100 and 101). Orchestra's own tasks end at chance there, in five "
            "runs of five.",
        ),
        Claim(
            "Orchestra loses less than others where clients differ in their labels.",
            study=lambda *_: few_classes(),
            answer=lambda lines: (
                f"{reason(lines[0])}; but for that, of {len(lines) - 1} methods these would lose"
                " more: "
                + ", ".join(x[0] for x in lines if x[3] and float(x[3]) < LEVEL and x[2][0] == "+")
            ),
            note=f"{BOARD_NOTE} Loss: points from α = 100 to α = 0.1. Orchestra's own tasks "
            "end at chance at every α, and its accuracy hardly depends on α; `supervised` fails at "
            "0.1 and is left out. An older study, "
            "[heterogeneity](../leaderboards/studies/heterogeneity/README.md), chose its rates "
            "worse.",
        ),
        Claim(
            "The same at matched configurations: what skew costs where both sides of a difference "
            "have one configuration.",
            study=lambda *_: matched(),
            answer=lambda lines: (
                f"byol loses {line_of(lines, 'byol')[3]} points more than Orchestra:"
                f" {reason(line_of(lines, 'byol'))}"
            ),
            note="Points from α = 100 to α = 0.1 over the configurations of the study of selection "
            f"with rates up to {HIGHEST_RATE:g}, two seeds each; looked at after that study, so "
            "exploratory. Configurations are matched between the two α, not between methods.",
            added=True,
        ),
        Claim(
            "Orchestra is robust to few clients in a round and to long local training.",
            study=lambda rows, store: (
                participation.HEADER,
                participation.outcome(rows, marks(store, rows)),
            ),
            answer=lambda lines: (
                f"beyond Orchestra's loss byol's is {line_of(lines, 'clients a round', 'byol')[4]}"
                f" and {line_of(lines, 'local epochs', 'byol')[4]} points"
            ),
            note="[The plan](../leaderboards/studies/participation/README.md) says how it is "
            "decided. More clients a round train on more images: 5 clients on five times those "
            "of 1.",
        ),
        Claim(
            "The number of global and of local clusters matters little (table 2: all within 1.4 "
            "points; the margin here is 1.5).",
            [
                _orchestra("8 − 32 global", -1.33, 0, num_global_clusters=8),
                _orchestra("128 − 32 global", -0.20, 0, num_global_clusters=128),
                _orchestra("2 − 16 local", -0.87, 0, num_local_clusters=2),
                _orchestra("4 − 16 local", -0.22, 0, num_local_clusters=4),
            ],
            note="The paper varies the global clusters beside 8 local ones, the preset has 16.",
        ),
        Claim(
            "Both the prediction of rotations and the target model are needed (table 6).",
            [
                _orchestra("without rotations", -14.96, -1, degeneracy=False),
                _orchestra("without target", -2.95, -1, target=False),
            ],
        ),
        Claim(
            "Sending centroids costs little against sending representations, and private centroids "
            "about two points (table 7).",
            [
                _orchestra("representations − centroids", 0.37, 0, representations="memory"),
                _orchestra(
                    "ε = 1 − centroids",
                    -1.98,
                    -1,
                    representations="private",
                    epsilon=1.0,
                    delta=0.001,
                ),
            ],
        ),
        Claim(
            "Fine-tuned on 1 % and 10 % of the labels, methods keep that order (table 1).",
            note="`fedbench sweep --grid orchestra-table1 --preset cross-device-finetune` measures "
            "it, on labels that no client had; no row here has been measured so. At `laptop` "
            "fine-tuning on 10 % puts a trained encoder below an untrained one "
            "([why](../leaderboards/studies/few_labels/README.md)).",
        ),
        Claim(
            "More clients, of fewer images each, cost Orchestra less than others.",
            note="`fedbench sweep --grid scaling` asks it; 400 clients of 25 images are not the "
            "paper's question, and it has not been run.",
        ),
        Claim(
            "All of it on CIFAR-100, and the time on a phone's processor.",
            note="No CIFAR-100 and no such processor was at hand.",
        ),
        Claim(
            "The label-free objective follows k-NN accuracy, R = 0.87 (figure 4).",
            study=lambda *_: figure_4(),
            answer=lambda lines: (
                f"R = {lines[-1][3]}; {lines[-1][4]} among runs that learnt something"
            ),
            note="Over the 48 runs of each cell of the study of selection, 24 configurations of a "
            "method and two seeds. It replicates; but most of it tells runs that learnt from those "
            f"that did not (less than {LEARNT:g} points of k-NN accuracy above random init).",
            added=True,
        ),
        Claim(
            "SimCLR converges fastest and ends low: with training Orchestra overtakes it (text to "
            "figure 9).",
            study=lambda _, store: long_training.budget_lines(store.root),
            answer=lambda lines: (
                f"the gap narrows by {line_of(lines, 'published', 'simclr')[7]} a doubling, by the"
                " last round alone; no lead at the end"
            ),
            decided_by=("published", "simclr"),
            note="The runs of claim 1: points of orchestra minus the method after rounds of 20,000 "
            "image passes, and the difference of the slopes on the logarithm of passes, by Welch's "
            "test. The claim is the line of simclr. The slopes of the published recipe that were "
            "called supported are withdrawn: they rest on the last round, none is settled without "
            "it or in the second recipe ([log](../leaderboards/studies/log.md)), and a slope is no "
            "lead at the end (claim 1).",
            added=True,
        ),
    ],
    "User verification (Louizos et al. 2024, https://arxiv.org/abs/2405.02081)": [
        Claim(
            "The loss raises accuracy where clients differ in their labels (table 1).",
            _verification("labels", (11.3, -4.6, 5.6)),
            note="Each difference beside the paper's own, which is a loss for SimSiam.",
        ),
        Claim(
            "It lowers accuracy where clients differ in the rotation of their images (table 1).",
            _verification("rotation", (-1.8, -4.5, -0.5)),
        ),
        Claim(
            "It raises accuracy where clients differ in both (table 1).",
            _verification("both", (8.4, -5.1, 3.8)),
            note="[The plan of that study](../leaderboards/studies/user_verification/README.md) "
            "describes this difference "
            "without a test; the rule here is that of this page.",
        ),
        Claim(
            "FeatARC's alignment term lowers SimCLR's accuracy (table 3, labels).",
            study=lambda *_: on_the_board("featarc", "simclr", "−9.0"),
            answer=lambda lines: (
                f"{lines[0][3]} points at α = 0.1: the paper's −9.0 is excluded here"
            ),
            note=f"{BOARD_NOTE} Clients get classes by the board's rule (Dirichlet, sizes equal), "
            "the paper's by another.",
        ),
        Claim(
            "Training with all labels is more accurate than the best method without (table 1, "
            "labels).",
            study=lambda *_: on_the_board("supervised", "best", "+1.8"),
            answer=lambda lines: (
                f"{lines[2][3]} points at α = 100, {lines[1][3]} at 1; at 0.1 {lines[0][-1]}"
            ),
            note=f"{BOARD_NOTE} The best method was picked from the same rows, which favours it; "
            "the paper's best is spectral+uv. `supervised` failed at α = 0.1 as in claim 2.",
        ),
        Claim(
            "User verification helps methods with a tenth of the labels (table 5, labels).",
            [
                Test("semifed+uv − semifed", Side("semifed+uv"), Side("semifed"), 16.7),
                Test("cbafed+uv − cbafed", Side("cbafed+uv"), Side("cbafed"), 7.8),
            ],
            note="Clients here get images at α = 0.1 each, not by the paper's rule.",
        ),
        Claim("All of it on CIFAR-100 and Tiny ImageNet.", note="Neither was at hand."),
    ],
    "pFedAE (Arora 2023)": [
        Claim(
            "pFedAE has the highest linear accuracy of all federated methods (table 4.1).",
            [
                Test("pfedae − orchestra", PFEDAE, ORCHESTRA, 11.74),
                Test("pfedae − byol", PFEDAE, Side("byol"), 16.20),
                Test("pfedae − spectral", PFEDAE, Side("spectral"), 17.85),
                Test("pfedae − simsiam", PFEDAE, Side("simsiam"), 20.43),
                Test("pfedae − simclr", PFEDAE, SIMCLR, 24.23),
            ],
            note="Means over the encoders of four clients here, by a linear probe; "
            "the paper's has two layers.",
        ),
        Claim(
            "Clients that train alone beat averaging their autoencoders, and pFedAE beats both "
            "(table 4.1).",
            [
                Test("pfedae − fedavg-ae", PFEDAE, Side("fedavg-ae"), 45.34),
                Test("pfedae − single-ae", PFEDAE, Side("single-ae"), 13.81),
                Test("single-ae − fedavg-ae", Side("single-ae"), Side("fedavg-ae"), 31.53),
            ],
        ),
        Claim(
            "The order holds with two classes per client, on CIFAR-100, and with 1 % and 10 % of "
            "the labels.",
            note="Not run; grid `pfedae-table4-1` has the cells.",
        ),
    ],
}
HEADER = ["comparison", "n", "linear", "difference", "p (Holm)", "seen at 0.8", "paper", "verdict"]
INTRODUCTION = """\
# What the papers claim, and what shows here

<!-- Written by leaderboards/studies/claims/claims.py from leaderboards/. -->

Three papers' claims, each beside runs of this project. Nets and training are smaller than the
papers', so a verdict is about this scale and no other.

"""
RULES = """
## How it is decided

Three settings, and each claim says which is its own:

- **Long training** (claims 1 to 1c, 10b): 100 clients, all images of CIFAR-10, α = 0.1, ResNet-8 of
  width 16, 1/21 of Orchestra's image passes, seeds 0 to 4. The plan,
  [long training](../leaderboards/studies/long_training/README.md), was there before the runs; its
  family has one test, with the variance pooled over a recipe.
- **The board** (claims 2, 3, 14, 15): 10 clients of 1,000 images, 12 rounds, five seeds, 10,000
  test images. The plan, [the board](../leaderboards/studies/board/README.md), names the test. Which
  of its rows answer a claim was decided after they were there.
- **The older preset `laptop`** (all other comparisons): the same size, 2,000 test images, three to
  five seeds; rates are the preset's, chosen on seed 0, Orchestra's by labels
  ([log](../leaderboards/studies/log.md)). The rule of verdicts was set after these runs: 123 of the
  134 rows of claims 11 to 13 and 18 were there at the first commit of this page's script.

Linear accuracy in %, differences in points, unpaired, ± half of the 95 % interval; p two-sided,
corrected by Holm within a claim. In the older comparisons the variance is pooled over the sides of
a claim, or Welch's where Brown and Forsythe's test finds them unequal. "Seen at 0.8" is the
smallest difference that would have been found with probability 0.8.

- **supported**: every comparison has the claim's sign at p < 0.05, or its interval lies within the
  margin where the claim is that nothing changes;
- **contradicted**: some comparison has the other sign at p < 0.05, or its interval lies beyond the
  margin;
- **not settled**: neither, most often because so few seeds cannot tell;
- **cannot be decided**: the interval is wider than the margin, so that no outcome would have been
  support;
- **no verdict**: the sides differ in crops or client steps, or one ends below its random init or at
  chance in any run; the line says which. At chance means that a term of the loss is within a tenth
  of what a net without information reaches. It does not mean that the encoder is bad: marked runs
  of Orchestra gain 8 points over random init on the board. byol and simsiam have no such mark;
- **withdrawn**: once called supported here, and why no longer;
- **measured**: figures without a test; **not tested**: the reason is given.
"""


def _steps(store: Store, row: Row) -> int:
    """Return the client steps behind an encoder that is evaluated, a mean over clients."""
    steps = sum(int(point["num_steps"] or 0) for point in store.curve(row.row_id))
    needs = registry.create(row.config.spec, row.config.method).needs()
    alone = needs.evaluate_on == "clients" and not needs.pooled
    return steps // row.config.data.num_clients if alone else steps


def unequal(store: Store, both: Sequence[Sequence[Row]]) -> str:
    """Say in what the sides of a comparison differ that no comparison may; empty if in nothing."""
    if reason := unequal_runs(*both):
        return reason
    rows = [side[0] for side in both]
    steps = [_steps(store, row) for row in rows]
    chooses = registry.entries()[rows[0].method.split("+")[0]].cls.relabels  # its own images
    if not chooses and max(steps) > 1.01 * min(steps):
        return f"{steps[0]:,} and {steps[1]:,} client steps per encoder"
    return ""


def outcome(
    claim: Claim, rows: Mapping[str, Row], store: Store
) -> tuple[str, list[list[str]], list[str]]:
    """Return a claim's verdict, the lines of its comparisons that have run, and their rows' ids."""
    sides = [(test, [test.first.rows(rows), test.second.rows(rows)]) for test in claim.tests]
    done = [(test, both) for test, both in sides if all(len(side) > 1 for side in both)]
    reasons = [unequal(store, both) for _, both in done]
    keys = [(str(test.first), str(test.second)) for test, _ in done]
    groups = {
        key: [linear(row) for row in side]
        for (_, both), names in zip(done, keys, strict=True)
        for key, side in zip(names, both, strict=True)
    }
    fair = [key for key, why in zip(keys, reasons, strict=True) if not why]
    of_fair = {name: groups[name] for key in fair for name in key}
    tests = compare_pairs(of_fair, fair) if fair else None
    marked = marks(store, [row for _, both in done for side in both for row in side])
    lines = []
    for (test, both), key, why in zip(done, keys, reasons, strict=True):
        first, second = (groups[name] for name in key)
        line = [test.name, f"{len(first)}, {len(second)}"]
        line.append(f"{np.mean(first):.1f}, {np.mean(second):.1f}")
        published = f"{test.published:+.1f}"
        if why:
            line += [f"{np.mean(first) - np.mean(second):+.2f}", "", "", published]
            numbers = [text.replace("-", "−") for text in line[1:]]
            lines.append([test.name, *numbers, f"no verdict: {why}"])
            continue
        found = tests.loc[key]
        verdict = _verdict(test, found.difference, found.low, found.high, found.p)
        by_spec = dict[str, list[Row]]()
        for each, runs in zip((test.first, test.second), both, strict=True):
            by_spec.setdefault(each.spec, []).extend(runs)
        if unlearnt := blind(counted(by_spec, marked)):
            verdict = f"no verdict: {unlearnt}"
        line += [f"{found.difference:+.2f} ± {found.high - found.difference:.2f}", f"{found.p:.2g}"]
        line += [f"{found.detectable:.1f}", published]
        lines.append([test.name, *(text.replace("-", "−") for text in line[1:]), verdict])
    ids = {row.row_id[:8]: None for _, both in done for side in both for row in side}
    verdict = overall([line[-1] for line in lines])
    if (len(done) < len(claim.tests) and verdict != "contradicted") or not done:
        verdict = "not tested"
    return verdict, lines, [*ids]


def _verdict(test: Test, difference: float, low: float, high: float, p: float) -> str:
    if test.expected == 0:
        if -test.margin < low and high < test.margin:
            return "supported"
        if low > test.margin or high < -test.margin:
            return "contradicted"
        return "cannot be decided" if (high - low) / 2 >= test.margin else "not settled"
    if p >= LEVEL:
        return "not settled"
    return "supported" if test.expected * difference > 0 else "contradicted"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def page(store: Store) -> str:
    """Return the page."""
    rows = store.rows()
    by_id = {row.row_id: row for row in rows}
    parts, table = [], []
    number = letter = 0
    for paper, claims in PAPERS.items():
        parts.append(f"## {paper}\n")
        for claim in claims:
            number, letter = (number, letter + 1) if claim.added else (number + 1, 0)
            name = f"{number}{chr(ord('a') + letter - 1)}" if claim.added else str(number)
            parts.append(f"### {name}. {claim.text}\n")
            ids: list[str] = []
            if claim.study:
                header, lines = claim.study(rows, store)
                decisive = [line_of(lines, *claim.decided_by)] if claim.decided_by else lines
                judged = header[-1] == "verdict"
                verdict = overall([line[-1] for line in decisive]) if judged else "measured"
            else:
                header, (verdict, lines, ids) = HEADER, outcome(claim, by_id, store)
            if claim.answer:
                found = claim.answer(lines)
            else:
                found = "; ".join(f"{line[0]} {line[3]}" for line in lines) or claim.note
            short = re.sub(r" \([^()]*\)\.$", "", claim.text).rstrip(".")
            table.append([name, short, verdict, found.rstrip(".")])
            said = f"**{verdict[0].upper()}{verdict[1:]}.** {claim.note}"
            parts.append(textwrap.fill(said.rstrip(), 150, break_on_hyphens=False) + "\n")
            if lines:
                parts.append(_table(header, lines) + "\n")
            if ids:
                parts.append(f"Rows: {', '.join(ids)}\n")
    summary = _table(["", "claim", "verdict", "here"], table)
    return INTRODUCTION + summary + "\n" + RULES + "\n" + "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    print(page(open_store(parser.parse_args().store)), end="")

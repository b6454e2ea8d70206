"""Print docs/claims.md: the papers' claims beside what the rows in leaderboards/results show.

Usage: `python docs/studies/claims.py [--store DIR] > docs/claims.md`. Claims and comparisons are
listed here before their runs; every figure is computed from the rows.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import heterogeneity
import participation
from cells import PRESET, STORE, linear, minus, spread

from fedbench import open_store
from fedbench.bench.config import row_id
from fedbench.bench.results.leaderboard.statistics import holm, mean, paired_p, t_interval
from fedbench.bench.results.store.row import Row
from fedbench.bench.runs.resolve import resolve

LEVEL = 0.05
THREE, FIVE = range(3), range(5)


@dataclass(frozen=True)
class Side:
    """A method's runs under `laptop` as it was in 2026-11.

    Attributes:
        spec: method spec.
        set: values over the preset's.
    """

    spec: str
    set: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, rows: Mapping[str, Row], seeds: Sequence[int]) -> list[Row]:
        """Return the rows of the seeds that have run, in their order."""
        found = []
        revision = next(iter(rows.values())).dataset_revision
        for seed in seeds:
            resolved = resolve(self.spec, preset=str(PRESET), set=self.set, seed=seed, environ={})
            row = rows.get(row_id(resolved.config, revision))
            if row is not None:
                found.append(row)
        return found


@dataclass(frozen=True)
class Test:
    """A comparison of linear accuracies, paired by seed.

    Attributes:
        name: what stands in the table.
        first: the side that the claim is about.
        second: what it is compared with.
        published: the paper's difference in points, first minus second; None = it gives no number.
        sign: the sign that the claim gives the difference; 0 = the difference is within `margin`.
        margin: points.
        seeds: seeds of both sides.
    """

    name: str
    first: Side
    second: Side
    published: float | None
    sign: int = 1
    margin: float = 0.0
    seeds: Sequence[int] = THREE


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        text: the claim, and where the paper makes it.
        tests: comparisons; it is supported if all are.
        study: prints a table of its own in place of tests: its header and lines.
        lines: of that table once all its runs are there.
        note: why it cannot be tested here, or what to keep in mind.
    """

    text: str
    tests: Sequence[Test] = ()
    study: Callable[[Sequence[Row]], tuple[list[str], list[list[str]]]] | None = None
    lines: int = 0
    note: str = ""


ORCHESTRA, SIMCLR, PFEDAE = Side("orchestra"), Side("simclr"), Side("pfedae")
SOURCES = {"labels": "hsu", "rotation": "rotation", "both": "joint"}


def _orchestra(name: str, published: float, sign: int, **fields: Any) -> Test:
    changed = Side("orchestra", {f"method.{key}": value for key, value in fields.items()})
    return Test(name, changed, ORCHESTRA, published, sign, margin=1.5 if sign == 0 else 0.0)


def _verification(source: str, sign: int, published: Sequence[float]) -> list[Test]:
    settings = {"data.partition": SOURCES[source]}
    methods = ("spectral", "simsiam", "simclr")
    return [
        Test(f"{m}+uv − {m}", Side(f"{m}+uv", settings), Side(m, settings), gain, sign, seeds=FIVE)
        for m, gain in zip(methods, published, strict=True)
    ]


HSU = {"data.partition": "hsu"}
PAPERS: Mapping[str, Sequence[Claim]] = {
    "Orchestra (Lubana et al. 2022, https://arxiv.org/abs/2205.11506)": [
        Claim(
            "Orchestra has the highest linear accuracy of the federated methods without labels "
            "(table 1, CIFAR-10, cross-device).",
            [
                Test("orchestra − simclr", ORCHESTRA, SIMCLR, 13.22, seeds=FIVE),
                Test("orchestra − simsiam", ORCHESTRA, Side("simsiam"), 9.97),
                Test("orchestra − spectral", ORCHESTRA, Side("spectral"), 5.07, seeds=FIVE),
                Test("orchestra − byol", ORCHESTRA, Side("byol"), 5.73, seeds=FIVE),
                Test("orchestra − rotpred", ORCHESTRA, Side("rotpred"), 27.14),
            ],
        ),
        Claim(
            "Training with labels is more accurate than Orchestra (table 1).",
            [Test("supervised − orchestra", Side("supervised"), ORCHESTRA, 9.27)],
        ),
        Claim(
            "Orchestra loses less than others where clients differ in their labels.",
            study=lambda rows: (heterogeneity.HEADER, heterogeneity.outcome(rows)),
            lines=len(heterogeneity.RATES.methods),
            note="[The plan](studies/heterogeneity.md) says how rates were chosen.",
        ),
        Claim(
            "Orchestra is robust to few clients in a round and to long local training.",
            study=lambda rows: (participation.HEADER, participation.outcome(rows)),
            lines=len(participation.METHODS) * len(participation.AXES),
            note="[The plan](studies/participation.md) says how it is decided.",
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
            note="The protocol `finetune` measures it; no row here has been measured so yet.",
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
    ],
    "User verification (Louizos et al. 2024, https://arxiv.org/abs/2405.02081)": [
        Claim(
            "The loss raises accuracy where clients differ in their labels (table 1).",
            _verification("labels", 1, (11.3, -4.6, 5.6)),
            note="For SimSiam the paper's own table has a loss.",
        ),
        Claim(
            "It lowers accuracy where clients differ in the rotation of their images (table 1).",
            _verification("rotation", -1, (-1.8, -4.5, -0.5)),
        ),
        Claim(
            "It raises accuracy where clients differ in both (table 1).",
            _verification("both", 1, (8.4, -5.1, 3.8)),
            note="[The plan of that study](studies/user-verification.md) describes this difference "
            "without a test; the rule here is that of this page.",
        ),
        Claim(
            "FeatARC's alignment term lowers SimCLR's accuracy (table 3, labels).",
            [Test("featarc − simclr", Side("featarc", HSU), Side("simclr", HSU), -9.0, -1)],
        ),
        Claim(
            "Training with all labels is more accurate than the best method without (table 1, "
            "labels).",
            [Test("supervised − simclr+uv", Side("supervised", HSU), Side("simclr+uv", HSU), 4.6)],
            note="The paper's best is spectral+uv, 1.8 points below supervised training.",
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
            note="Means over the encoders of four clients here.",
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
HEADER = ["comparison", "linear", "difference", "p (Holm)", "paper", "verdict"]
INTRODUCTION = """\
# What the papers claim, and what shows here

<!-- Written by `python docs/studies/claims.py > docs/claims.md` from leaderboards/results. -->

Each claim of the three papers that fedbench began with, beside runs of the preset `laptop`: 10,000
training images of CIFAR-10, 10 clients at α = 0.1 (where a claim is about user verification, as
it says), 2 per round, 12 rounds of 2 epochs, ResNet-8.
That is 1/520 of Orchestra's image passes, so a verdict is about this scale and no
other. Linear accuracy in %, means over three or five seeds; differences in points, paired by seed,
mean ± half of the 95 % interval of Student's t; p two-sided, corrected by Holm within a claim.
Learning rates are the preset's, but where a linked plan names others, so that one method has
different accuracies in different claims. They were chosen on seed 0, Orchestra's by labels
(log.md), and seed 0 is among the seeds here.

- **supported**: every comparison has the claim's sign at p < 0.05, or its interval lies within the
  margin where the claim is that nothing changes;
- **contradicted**: some comparison has the other sign at p < 0.05, or its interval lies beyond the
  margin;
- **not supported at this scale**: neither, most often because three seeds cannot tell;
- **not tested**: the reason is given; claims 3 and 4 have verdicts of their own plans in the table.
"""


def outcome(claim: Claim, rows: Mapping[str, Row]) -> tuple[str, list[list[str]], list[str]]:
    """Return a claim's verdict, the lines of its comparisons that have run, and their rows' ids."""
    sides = [(t, [side.rows(rows, t.seeds) for side in (t.first, t.second)]) for t in claim.tests]
    done = [(t, both) for t, both in sides if all(len(side) == len(t.seeds) for side in both)]
    scores = [[[linear(row) for row in side] for side in both] for _, both in done]
    ps = [paired_p(first, second) for first, second in scores]
    lines, verdicts = [], []
    corrected = holm([1.0 if p is None else p for p in ps])
    for (test, _), both, p in zip(done, scores, corrected, strict=True):
        differences = minus(*both)
        verdict = _verdict(test, differences, p)
        verdicts.append(verdict)
        first, second = map(mean, both)
        published = "" if test.published is None else f"{test.published:+.1f}"
        line = [test.name, f"{first:.1f}, {second:.1f}", spread(differences), f"{p:.2g}"]
        lines.append([*line, published.replace("-", "−"), verdict])
    ids = {row.row_id[:8]: None for _, both in done for side in both for row in side}
    if "contradicted" in verdicts:
        return "contradicted", lines, [*ids]
    if len(done) < len(claim.tests) or not done:
        return "not tested", lines, [*ids]
    all_hold = set(verdicts) == {"supported"}
    return "supported" if all_hold else "not supported at this scale", lines, [*ids]


def _verdict(test: Test, differences: Sequence[float], p: float) -> str:
    if test.sign == 0:
        low, high = t_interval(differences) or (float("-inf"), float("inf"))
        if -test.margin < low and high < test.margin:
            return "supported"
        beyond = low > test.margin or high < -test.margin
        return "contradicted" if beyond else "not settled"
    if p >= LEVEL:
        return "not settled"
    return "supported" if test.sign * (mean(differences) or 0.0) > 0 else "contradicted"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    by_id = {row.row_id: row for row in rows}
    parts = [INTRODUCTION]
    number = 0
    for paper, claims in PAPERS.items():
        parts.append(f"## {paper}\n")
        for claim in claims:
            number += 1
            parts.append(f"### {number}. {claim.text}\n")
            if claim.study:
                header, lines = claim.study(rows)
                verdict = "a verdict for each line" if lines else "not tested"
                if 0 < len(lines) < claim.lines:
                    verdict = f"not finished: {len(lines)} of {claim.lines} lines, p over these"
                ids: list[str] = []
            else:
                header, (verdict, lines, ids) = HEADER, outcome(claim, by_id)
            left_out = len(claim.tests) - len(lines) if claim.tests else 0
            missing = f"{left_out} more comparisons have not run." if left_out and lines else ""
            parts.append(
                textwrap.fill(f"**{verdict}.** {claim.note}{missing}".rstrip(), 150) + "\n"
            )
            if lines:
                parts.append(_table(header, lines) + "\n")
            if ids:
                parts.append(f"Rows: {', '.join(ids)}\n")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=STORE, help="folder of results")
    print(page(open_store(parser.parse_args().store).rows()), end="")

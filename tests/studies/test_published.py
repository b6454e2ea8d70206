"""Published outcomes of studies are those of the committed rows, and are decided as announced."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbench import open_store
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import load_grid, plan

from .conftest import ROOT, STUDIES, made

DOCS = ROOT / "docs"


def test_the_page_of_after_has_what_the_rows_give(study: Any) -> None:
    module = study("after")
    lines = module.outcome()
    assert len(lines) == len(module.PAIRS)
    page = (STUDIES / "after" / "README.md").read_text(encoding="utf-8")
    missing = [line for line in lines if f"| {' | '.join(line)} |" not in page]
    assert not missing


def test_paired_tests_are_those_of_whole_numbers(study: Any) -> None:
    """A difference that is the same for all seeds is certain; none at all is no difference."""
    paired_p, images = study("cells").paired_p, 298
    for first, second in itertools.product([(273, 273, 273), (200, 210, 290)], repeat=2):
        x, y = ([count / images for count in counts] for counts in (first, second))
        same = [(count + 3) / images for count in first]
        assert (paired_p(x, x), paired_p(x, same)) == (1.0, 0.0)
        if first != second:
            assert paired_p(x, y) == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert paired_p([1, 2], [3, 4]) is None


def test_heterogeneity_is_decided_at_the_rate_with_the_highest_sep(study: Any, row: Row) -> None:
    module = study("heterogeneity")
    methods = ["orchestra", "simclr", "byol"]

    def trial(config: Any) -> dict[str, Any]:
        rate = config.client.lr
        diverged = rate == 0.1  # the highest SEP, of a run that diverged
        sep = {0.001: 0.1, 0.003: 0.2, 0.01: 0.6, 0.03: 0.5, 0.1: 0.9}[rate]
        return {
            "status": "diverged" if diverged else "ok",
            "further": {"sep": sep},
            "objective": -rate,
            "linear_acc": rate,
        }

    def compared(config: Any) -> dict[str, Any]:
        lost = {"orchestra": 0.01, "byol": 0.06, "simclr": 0.02}[config.spec]
        noise = 0.001 * config.seed * (1 if config.spec == "byol" else -3)
        return {"linear_acc": 0.5 + noise - (lost if config.data.alpha == 0.1 else 0)}

    planned = study("cells").planned
    rows = made(row, planned(module.RATES, methods=methods), trial)
    assert module.chosen_rates(rows[:-3]) == {}  # a rate of each is missing
    assert module.chosen_rates(rows)["byol"] == {"sep": 0.01, "objective": 0.001, "linear": 0.03}
    settings = {"methods": methods, "set": {"client.lr": 0.01}}
    rows += made(row, planned(module.COMPARISON, **settings), compared)
    table = {line[0]: line[1:] for line in module.outcome(rows)}
    assert table["orchestra"][:5] == ["0.01", "48.7", "49.7", "49.7", "+1.00 ± 0.00"]
    assert table["byol"][4:9] == ["+6.00 ± 0.00", "refuted", "+5.00 ± 0.00", "0", "supported"]
    assert table["byol"][-1] == "supported"  # orchestra is 5 points ahead at 0.1, less noise
    assert table["simclr"][6:8] == ["", ""]  # its crops are wider than orchestra's


def test_participation_compares_what_is_lost_from_end_to_end(study: Any, row: Row) -> None:
    module = study("participation")

    def score(config: Any) -> dict[str, Any]:
        share = {0.5: 0.0, 0.2: 0.5, 0.1: 1.0}[config.federation.participation]
        lost = {"orchestra": 0.01, "byol": 0.04, "simclr": 0.01}[config.spec]
        return {"linear_acc": 0.5 - share * lost}

    rows = made(row, study("cells").planned(load_grid("participation")), score)
    table = {(line[0], line[1]): line[2:] for line in module.outcome(rows)}
    assert set(table) == {("clients a round", method) for method in module.METHODS}
    byol = table["clients a round", "byol"]
    assert byol[1:] == ["+4.00 ± 0.00", "+3.00 ± 0.00", "0", "supported"]
    assert table["clients a round", "simclr"][2:4] == ["", ""]  # its crops are wider


def test_the_claims_page_has_what_the_rows_give(study: Any) -> None:
    """`python leaderboards/studies/claims/claims.py > docs/claims.md` writes the page again."""
    module = study("claims")
    page = module.page(open_store(module.STORE))
    assert (DOCS / "claims.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("sign", "margin", "ends", "p", "verdict"),
    [
        (None, 0.0, (3.0, 5.0), 0.02, "supported"),  # the paper's own sign
        (1, 0.0, (3.0, 5.0), 0.06, "not settled"),
        (-1, 0.0, (3.0, 5.0), 0.02, "contradicted"),
        (0, 1.5, (-0.25, 0.25), 0.9, "supported"),
        (0, 1.5, (-2.5, 2.5), 0.9, "cannot be decided"),  # wider than the margin
        (0, 1.5, (-0.2, 2.2), 0.2, "not settled"),
        (0, 1.5, (-3.1, -2.9), 0.01, "contradicted"),
        (0, 1.5, (0.8, 1.2), 0.01, "supported"),  # above 0, and within the margin
    ],
)
def test_verdicts_on_a_claim(
    study: Any, sign: int | None, margin: float, ends: tuple[float, float], p: float, verdict: str
) -> None:
    module = study("claims")
    test = module.Test("", module.SIMCLR, module.SIMCLR, 2.0, sign, margin)
    assert module._verdict(test, sum(ends) / 2, *ends, p) == verdict


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (["supported", "supported", ""], "supported"),
        (["supported", "not settled", "no verdict: x at chance, 5 of 5"], "not settled"),
        (["supported", "no verdict: x at chance, 5 of 5"], "not settled"),
        (["no verdict: x", "no verdict: y", ""], "no verdict"),
        (["supported", "contradicted"], "contradicted"),
        (["cannot be decided", "not settled"], "cannot be decided"),
        (["withdrawn: its rate is ours"], "withdrawn"),
    ],
)
def test_a_claim_is_supported_only_if_every_comparison_is(
    study: Any, lines: list[str], verdict: str
) -> None:
    assert study("claims").overall(lines) == verdict


def test_the_grid_of_the_study_of_selection_is_that_of_its_code(study: Any) -> None:
    module = study("selection")
    assert module.GRID.read_text(encoding="utf-8") == module.grid_text()
    assert module.SCORES_GRID.read_text(encoding="utf-8") == module.grid_text(scores=True)
    cells = module.planned(load_grid(module.GRID), set=module.MEASURED)
    assert len(cells) == len(module.OWN) * module.COUNT * len(module.ALPHAS) * len(module.SEEDS)


def test_the_grids_of_the_board_and_its_confirmation(study: Any) -> None:
    """Their runs share no seed: 0 to 4 judge, 100 and 101 choose rates, 200 and 201 confirm."""
    module = study("confirmation")
    assert module.GRID.read_text(encoding="utf-8") == module.grid_text()
    cells = {
        file.stem: plan(load_grid(file), preset="laptop", environ={})
        for file in (module.GRID, *(STUDIES / "board").glob("*.yaml"))
    }
    counts = {name: len(found) for name, found in cells.items()}
    assert counts == {"confirmation": 192, "board-rates": 88, "board": 165, "board-fashion": 60}
    seeds = {name: {cell.config.seed for cell in found} for name, found in cells.items()}
    assert seeds == {
        "confirmation": {200, 201},
        "board-rates": {100, 101},
        "board": {*range(5)},
        "board-fashion": {*range(5)},
    }
    assert {cell.config.client.local_epochs for cell in cells["confirmation"]} == {2}
    assert max(cell.config.client.lr for cell in cells["confirmation"]) < 0.1


def test_regret_and_tau_by_hand(study: Any) -> None:
    module = study("selection")
    accuracy = np.zeros(24)
    for rank, (one, four, sixteen) in enumerate(
        [(0.041667, 0.166667, 0.666667), (0.041667, 0.144928, 0.231884)]
    ):
        worse = accuracy.copy()
        worse[rank] = -1.0  # the probability that this rank is taken is what is lost
        order = -np.arange(24.0)
        found = [module.regret(order, worse, budget) for budget in (1, 4, 16)]
        assert found == pytest.approx([one, four, sixteen], abs=1e-6)
    x, y = np.array([1.0, 2, 2, 3, 4, 5]), np.array([1.0, 3, 2, 2, 5, 4])
    assert module.tau(x, y) == pytest.approx(0.642857, abs=1e-6)
    assert module.tau(x, x) == 1.0
    assert module.tau(np.full(6, -np.inf), y) == 0.0
    ranked = np.array([-np.inf, 1.0, 2.0])
    assert module.tau(ranked, np.array([1.0, 2.0, 3.0])) == 1.0
    # Copies of one configuration say nothing about an order.
    counts = np.array([[2.0, 1, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]])
    assert module.taus(x, -x, counts).tolist() == [-1.0, 0.0]
    assert module.regret(accuracy, accuracy, 24) == 0

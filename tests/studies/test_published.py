"""Published outcomes of studies are those of the committed rows, and are decided as announced."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedbench import open_store
from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import load_grid, plan
from fedbench.leaderboards.studies import cells
from fedbench.leaderboards.studies.after import after
from fedbench.leaderboards.studies.claims import claims
from fedbench.leaderboards.studies.confirmation import confirmation
from fedbench.leaderboards.studies.devices import devices
from fedbench.leaderboards.studies.heterogeneity import heterogeneity
from fedbench.leaderboards.studies.participation import participation
from fedbench.leaderboards.studies.selection import selection
from fedbench.leaderboards.studies.theory import theory
from fedbench.leaderboards.studies.views import views

from .conftest import ROOT, STUDIES, made

DOCS = ROOT / "docs"


def test_the_page_of_after_has_what_the_rows_give() -> None:
    lines = after.outcome()
    assert len(lines) == len(after.PAIRS)
    page = (STUDIES / "after" / "README.md").read_text(encoding="utf-8")
    missing = [line for line in lines if f"| {' | '.join(line)} |" not in page]
    assert not missing


def test_paired_tests_are_those_of_whole_numbers() -> None:
    """A difference that is the same for all seeds is certain; none at all is no difference."""
    paired_p, images = cells.paired_p, 298
    for first, second in itertools.product([(273, 273, 273), (200, 210, 290)], repeat=2):
        x, y = ([count / images for count in counts] for counts in (first, second))
        same = [(count + 3) / images for count in first]
        assert (paired_p(x, x), paired_p(x, same)) == (1.0, 0.0)
        if first != second:
            assert paired_p(x, y) == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert paired_p([1, 2], [3, 4]) is None


def test_heterogeneity_is_decided_at_the_rate_with_the_highest_sep(row: Row) -> None:
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

    rows = made(row, cells.planned(heterogeneity.RATES, methods=methods), trial)
    assert heterogeneity.chosen_rates(rows[:-3]) == {}  # a rate of each is missing
    rates = heterogeneity.chosen_rates(rows)
    assert rates["byol"] == {"sep": 0.01, "objective": 0.001, "linear": 0.03}
    settings = {"methods": methods, "set": {"client.lr": 0.01}}
    rows += made(row, cells.planned(heterogeneity.COMPARISON, **settings), compared)
    table = {line[0]: line[1:] for line in heterogeneity.outcome(rows)}
    # Seeds 0 to 2: the mean noise is 0.1 points for byol, -0.3 for the others.
    assert table["orchestra"][:5] == ["0.01", "48.7", "49.7", "49.7", "+1.00 ± 0.00"]
    assert table["byol"][4:9] == ["+6.00 ± 0.00", "refuted", "+5.00 ± 0.00", "0", "supported"]
    assert table["byol"][-1] == "supported"  # orchestra is 5 points ahead at 0.1, less noise
    assert table["simclr"][6:8] == ["", ""]  # its crops are wider than orchestra's


def test_participation_compares_what_is_lost_from_end_to_end(row: Row) -> None:

    def score(config: Any) -> dict[str, Any]:
        share = {0.5: 0.0, 0.2: 0.5, 0.1: 1.0}[config.federation.participation]
        lost = {"orchestra": 0.01, "byol": 0.04, "simclr": 0.01}[config.spec]
        return {"linear_acc": 0.5 - share * lost}

    rows = made(row, cells.planned(load_grid("participation")), score)
    table = {(line[0], line[1]): line[2:] for line in participation.outcome(rows)}
    assert set(table) == {("clients a round", method) for method in participation.METHODS}
    byol = table["clients a round", "byol"]
    assert byol[1:] == ["+4.00 ± 0.00", "+3.00 ± 0.00", "0", "supported"]
    assert table["clients a round", "simclr"][2:4] == ["", ""]  # its crops are wider


def test_the_claims_page_has_what_the_rows_give() -> None:
    """`python leaderboards/studies/claims/claims.py > docs/claims.md` writes the page again."""
    page = claims.page(open_store(claims.STORE))
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
    sign: int | None, margin: float, ends: tuple[float, float], p: float, verdict: str
) -> None:
    test = claims.Test("", claims.SIMCLR, claims.SIMCLR, 2.0, sign, margin)
    assert claims._verdict(test, sum(ends) / 2, *ends, p) == verdict


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
def test_a_claim_is_supported_only_if_every_comparison_is(lines: list[str], verdict: str) -> None:
    assert claims.overall(lines) == verdict


def test_the_grid_of_the_study_of_selection_is_that_of_its_code() -> None:
    assert selection.GRID.read_text(encoding="utf-8") == selection.grid_text()
    assert selection.SCORES_GRID.read_text(encoding="utf-8") == selection.grid_text(scores=True)
    cells = selection.planned(load_grid(selection.GRID), set=selection.MEASURED)
    settings = itertools.product(selection.OWN, selection.ALPHAS, selection.SEEDS)
    assert len(cells) == len([*settings]) * selection.COUNT


def test_the_grids_of_the_board_and_its_confirmation() -> None:
    """Their runs share no seed: 0 to 4 judge, 100 and 101 choose rates, 200 and 201 confirm."""
    assert confirmation.GRID.read_text(encoding="utf-8") == confirmation.grid_text()
    cells = {
        file.stem: plan(load_grid(file), preset="laptop", environ={})
        for file in (confirmation.GRID, *(STUDIES / "board").glob("*.yaml"))
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


def test_regret_and_tau_by_hand() -> None:
    accuracy = np.zeros(24)
    for rank, (one, four, sixteen) in enumerate(
        [(0.041667, 0.166667, 0.666667), (0.041667, 0.144928, 0.231884)]
    ):
        worse = accuracy.copy()
        # The probability that this rank is taken is what is lost: the best of k among 24 is the
        # first with k / 24 and the second with k (24 - k) / (24 * 23).
        worse[rank] = -1.0
        order = -np.arange(24.0)
        found = [selection.regret(order, worse, budget) for budget in (1, 4, 16)]
        assert found == pytest.approx([one, four, sixteen], abs=1e-6)
    x, y = np.array([1.0, 2, 2, 3, 4, 5]), np.array([1.0, 3, 2, 2, 5, 4])
    # Of 14 pairs each without a tie, 11 agree and 2 do not: 9 / 14.
    assert selection.tau(x, y) == pytest.approx(0.642857, abs=1e-6)
    assert selection.tau(x, x) == 1.0
    assert selection.tau(np.full(6, -np.inf), y) == 0.0
    ranked = np.array([-np.inf, 1.0, 2.0])
    assert selection.tau(ranked, np.array([1.0, 2.0, 3.0])) == 1.0
    # Copies of one configuration say nothing about an order.
    counts = np.array([[2.0, 1, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]])
    assert selection.taus(x, -x, counts).tolist() == [-1.0, 0.0]
    assert selection.regret(accuracy, accuracy, 24) == 0


LOST = {"whole": 0.0, "dropout": 0.02, "deadline": 0.01, "rare and slow": 0.05}


def test_losses_and_regret_of_made_up_runs(row: Row) -> None:
    """Spectral loses twice what the others do; the objective prefers 0.03, labels 0.1."""
    cells = devices.planned()
    assert len(cells) == 4 * 4 * 3 * 5

    def score(config: Any) -> dict[str, float]:
        factor = 2 if config.spec == "spectral" else 1
        linear = 0.4 - factor * LOST[devices.setting_of(config)] + config.seed / 1e5
        linear += 0.004 * (config.client.lr == 0.1)
        return {"linear_acc": linear, "objective": float(config.client.lr == 0.03)}

    table = devices.measured(made(row, cells, score), cells)
    assert len(table) == len(cells)
    assert devices.lost(table, "dropout").mean(axis=1).to_dict() == pytest.approx(
        {"simclr": 2, "byol": 2, "simsiam": 2, "spectral": 4}
    )
    assert devices.lost(table, "rare and slow").loc["spectral"].tolist() == pytest.approx([8] * 5)
    assert devices.regret(table).tolist() == pytest.approx([0.4] * 16)


def rows_of(row: Row, sign: int) -> list[Row]:
    """Rows whose delta is larger, by method, where accuracy falls more (or less) with alpha."""

    def score(config: Any) -> dict[str, Any]:
        place = theory.METHODS.index(config.spec) + config.seed / 100
        lost = place / 10 if config.data.alpha == 0.1 else 0.0
        values = {**dict.fromkeys(theory.QUANTITIES, 0.5), "global_mi": -lost}
        values["cluster_delta"] = 0.3 + sign * lost / 2
        return {"linear_acc": 0.5 - lost / 2, "further": values}

    return made(row, theory.planned(load_grid(theory.GRID)), score)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "supported"), (-1, "contradicted")])
def test_what_orders_the_losses_is_supported(row: Row, sign: int, verdict: str) -> None:
    lines = {(line[0], line[1]): line for line in theory.outcome(rows_of(row, sign))}
    # All five seeds order the six methods alike: tau is 1, and its five values do not differ.
    assert lines["cluster_delta", "100 → 0.1"][3] == (
        "+1.00 ± 0.00" if sign > 0 else "−1.00 ± 0.00"
    )
    assert lines["cluster_delta", "100 → 0.1"][-1] == verdict
    assert lines["cluster_c", "100 → 0.1"][3:] == ["+0.00 ± 0.00", "1", "0.00", "not settled"]
    assert lines["global_mi", "100 → 0.1"][3:] == ["+1.00 ± 0.00", "", "", ""]


def test_nothing_is_tested_before_all_seeds_have_the_quantities(row: Row) -> None:
    rows = rows_of(row, 1)
    for old in rows:
        if old.seed != 2:
            del old.further["cluster_c"]
    lines = {(line[0], line[1]): line[2:] for line in theory.outcome(rows)}
    assert lines["cluster_c", "1"][0] == "1"
    assert lines["cluster_delta", "100 → 0.1"] == ["5", "+1.00 ± 0.00", "", "", ""]


def test_nothing_is_said_before_the_last_run(row: Row) -> None:
    assert theory.outcome(rows_of(row, 1)[1:]) == []


def test_rates_are_chosen_as_the_board_chose_them() -> None:
    """The committed rows of the board, by this reader and rule: README's means at alpha 0.1."""
    rows = views.read(views.BOARD, views.WIDE)
    found = views.judged(rows, views.rates(rows))
    means = {name: round(float(values.mean()), 1) for name, values in found.items()}
    assert (means["simclr"], means["orchestra"], means["byol"]) == (42.9, 37.8, 38.1)
    assert {*found} == {*views.METHODS, "supervised"}


def test_the_page_of_views_has_its_rows() -> None:
    wide, narrow = (
        views.judged(rows, views.rates(rows))
        for rows in (
            views.read(views.BOARD, views.WIDE),
            views.read(views.FOLDER, views.NARROW),
        )
    )
    wide = {name: wide[name] for name in views.METHODS}
    page = (views.FOLDER / "README.md").read_text("utf-8")
    for name, line in views.changes(wide, narrow).iterrows():
        start = f"| {narrow[str(name)].mean():.1f} | {wide[str(name)].mean():.1f} | "
        effect = f"{line.effect:.1f} [{line.low:.1f}, {line.high:.1f}]".replace("-", "−")
        assert f"{start}{effect.replace('−0.0 ', '0.0 ')} |" in page, name
    assert views.turned(wide, narrow) == []


def test_rates_by_hand() -> None:
    """Orchestra: ranks by loss 4, 3, 2, 1 and by SEP 1, 3, 2, 4; sums 5, 6, 4, 5: 0.01.

    simclr takes the lowest loss, but at 0.003 a run diverged: 0.01 as well.
    """
    lines = [
        {"method": method, "rate": rate, "seed": seed, "loss": loss, "sep": sep, "accuracy": 40.0}
        | {"before": 30.0, "ok": (method, rate, seed) != ("simclr", 0.003, 101)}
        for method in ("orchestra", "simclr")
        for rate, loss, sep in zip(
            [0.003, 0.01, 0.03, 0.1], [1.0, 2, 3, 4], [0.1, 0.3, 0.2, 5.0], strict=True
        )
        for seed in (100, 101)
    ]
    assert views.rates(pd.DataFrame(lines)) == {"orchestra": 0.01, "simclr": 0.01}


def test_a_change_of_a_lead_is_welchs_with_four_groups() -> None:
    """With two groups it is SciPy's Welch test; the lead falls from 5 to -1, a change of -6."""
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    a, b = 3 + spread, 2 + 2 * spread
    two = views.welch([(a, 1), (b, -1)], 0.05)
    assert two["p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    wide = {"simclr": 45 + spread, "orchestra": 40 + spread, "byol": 38 + spread}
    narrow = {"simclr": 39 + spread, "orchestra": 40 + spread, "byol": 38 + spread}
    table = views.changes(wide, narrow)
    assert dict(table["effect"]) == pytest.approx({"simclr": -6.0, "byol": 0.0})
    assert [*table["verdict"]] == ["differs", "not settled"]
    assert views.turned(wide, narrow) == []  # 39 and 40 are not told apart
    narrow["simclr"] = 35 + spread
    assert views.turned(wide, narrow) == ["simclr - orchestra", "simclr - byol"]
    assert views.order(wide, narrow)[0] == pytest.approx(-1 / 3)  # one of three pairs stays

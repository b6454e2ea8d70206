"""Compare methods with a reference by unpaired seeds: variance pooled over methods, or Welch's."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import special, stats

from fedbench.bench.results.leaderboard.statistics import holm

LEVEL, POWER = 0.05, 0.8


def compare(groups: Mapping[str, Sequence[float]], reference: str) -> pd.DataFrame:
    """Test the reference against each other method, as `compare_pairs` does.

    Args:
        groups: method -> a value per seed, at least two each.
        reference: one of the methods.

    Returns:
        Indexed by the other method; `difference` is reference minus method.
    """
    others = [(reference, name) for name in groups if name != reference]
    return compare_pairs(groups, others).droplevel(0)


def compare_pairs(
    groups: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]] | None = None
) -> pd.DataFrame:
    """Test pairs of methods; Holm over all of them.

    The variance is pooled over the methods, unless Brown and Forsythe's test rejects equal ones;
    then each comparison is Welch's.

    Args:
        groups: method -> a value per seed, at least two each.
        pairs: of methods; None = all.

    Returns:
        Indexed by the pair: `difference` (first minus second), `low` and `high` of its 95 %
        interval without correction, `p` (two-sided, adjusted), `detectable` (smallest difference
        rejected with probability 0.8, at the level of Holm's first step), `test`, `verdict`.
    """
    # Rounded to 30 binary digits as boards do, so that equal counts of right answers are equal.
    values = {name: np.round(np.asarray(g) * 2.0**30) / 2.0**30 for name, g in groups.items()}
    pairs = [*combinations(values, 2)] if pairs is None else pairs
    equal = len(values) < 2 or stats.levene(*values.values(), center="median").pvalue >= LEVEL
    rows = {}
    for first, second in pairs:
        error, freedom = _error(values, first, second, pooled=bool(equal))
        difference = values[first].mean() - values[second].mean()
        half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
        rows[first, second] = {
            "difference": difference,
            "low": difference - half,
            "high": difference + half,
            "p": 2 * stats.t.sf(abs(difference) / error, freedom),
            "detectable": detectable(error, freedom, LEVEL / len(pairs)),
            "test": "pooled" if equal else "Welch",
        }
    table = pd.DataFrame(rows.values(), index=pd.MultiIndex.from_tuples(rows))
    table["p"] = holm([*table["p"]])
    ahead = np.where(table["difference"] > 0, "supported", "contradicted")
    table["verdict"] = np.where(table["p"] < LEVEL, ahead, "not settled")
    return table


def tie_groups(order: Sequence[str], table: pd.DataFrame) -> dict[str, str]:
    """Return letters: methods that share one are not told apart.

    A letter is a longest stretch of the ranked list in which no pair differs.

    Args:
        order: methods from the highest mean.
        table: `compare_pairs` of all of them.
    """
    differ = {frozenset(pair) for pair, p in table["p"].items() if p < LEVEL}
    letters = dict.fromkeys(order, "")
    reached = letter = 0
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and not any(
            frozenset((order[end], name)) in differ for name in order[start:end]
        ):
            end += 1
        if end > reached:
            for name in order[start:end]:
                letters[name] += chr(ord("a") + letter)
            reached, letter = end, letter + 1
    return letters


def _error(
    values: Mapping[str, np.ndarray], first: str, second: str, *, pooled: bool
) -> tuple[float, float]:
    """Standard error of a difference of means, and its degrees of freedom."""
    if pooled:
        squares = sum(group.var(ddof=1) * (len(group) - 1) for group in values.values())
        freedom = sum(len(group) - 1 for group in values.values())
        share = 1 / len(values[first]) + 1 / len(values[second])
        return float(np.sqrt(squares / freedom * share)), float(freedom)
    parts = [values[name].var(ddof=1) / len(values[name]) for name in (first, second)]
    sizes = [len(values[name]) - 1 for name in (first, second)]
    freedom = sum(parts) ** 2 / sum(p**2 / n for p, n in zip(parts, sizes, strict=True))
    return float(np.sqrt(sum(parts))), float(freedom)


def detectable(error: float, freedom: float, level: float = LEVEL) -> float:
    """Difference that a two-sided t-test of this standard error rejects with probability 0.8."""
    critical = stats.t.ppf(1 - level / 2, freedom)
    return error * float(special.nctdtrinc(freedom, 1 - POWER, critical))

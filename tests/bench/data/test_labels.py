"""Visible labels and class-balanced subsets."""

import numpy as np
import pytest

from fedbench.bench.data.labels import (
    balanced_subset,
    few_per_class,
    held_out,
    majority,
    visible_labels,
)

LABELS = np.arange(200, dtype=np.int64) % 7
CLIENTS = [np.arange(50), np.arange(60, 65), np.array([], dtype=np.int64), np.arange(199, 100, -1)]


@pytest.mark.parametrize(
    ("fraction", "counts"),
    [
        (0.0, [0, 0, 0, 0]),
        # 0.1 * (50, 5, 0, 99) = 5, 0.5 (half up: 1), 0, 9.9
        (0.1, [5, 1, 0, 10]),
        # 0.01 * 5 = 0.05 rounds to 0, but a client that has examples shows at least one
        (0.01, [1, 1, 0, 1]),
        # 0.29 * 50 = 14.5, which floats give as 14.499999999999998
        (0.29, [15, 1, 0, 29]),
        (1.0, [50, 5, 0, 99]),
    ],
)
def test_counts_per_client(fraction: float, counts: list[int]) -> None:
    seen = visible_labels(LABELS, CLIENTS, fraction, seed=3)
    assert [int((seen[c] >= 0).sum()) for c in CLIENTS] == counts
    assert int((seen >= 0).sum()) == sum(counts)  # nothing outside the clients
    assert seen.dtype == np.int64
    np.testing.assert_array_equal(seen[seen >= 0], LABELS[seen >= 0])


def test_choice_is_fixed_by_seed_and_client_alone() -> None:
    whole = visible_labels(LABELS, CLIENTS, 0.3, seed=1)
    np.testing.assert_array_equal(whole, visible_labels(LABELS, CLIENTS, 0.3, seed=1))
    assert (whole != visible_labels(LABELS, CLIENTS, 0.3, seed=2)).any()
    # Neither the order of a client's examples nor another client's examples matter.
    others = [CLIENTS[0][::-1], np.array([70]), *CLIENTS[2:]]
    changed = visible_labels(LABELS, others, 0.3, seed=1)
    for client in (0, 3):
        np.testing.assert_array_equal(whole[CLIENTS[client]], changed[CLIENTS[client]])


def test_every_example_is_equally_likely() -> None:
    shown = np.zeros(10)
    for seed in range(400):
        shown += visible_labels(np.zeros(10, dtype=np.int64), [np.arange(10)], 0.3, seed) == 0
    # Binomial(400, 0.3): mean 120, standard deviation 9.2; 5 of them either side.
    assert shown.sum() == 3 * 400
    assert abs(shown - 120).max() < 46


def test_subset_sizes_follow_the_largest_remainder() -> None:
    labels = np.repeat(np.arange(3), [60, 30, 10])
    # 25 of 100: quotas 15, 7.5, 2.5; the one left over goes to the lower of two equal remainders.
    chosen = balanced_subset(labels, 25, "train-subset")
    np.testing.assert_array_equal(np.bincount(labels[chosen]), [15, 8, 2])
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, balanced_subset(labels, 25, "train-subset"))
    assert chosen.tolist() != balanced_subset(labels, 25, "test-subset").tolist()
    np.testing.assert_array_equal(balanced_subset(labels, 100, "x"), np.arange(100))


def test_smaller_subsets_lie_in_larger_ones() -> None:
    labels = np.arange(1000) % 10
    small, large = (set(balanced_subset(labels, n, "train-subset")) for n in (100, 300))
    assert small < large


def test_held_out_examples_are_a_seeded_share_of_every_class() -> None:
    labels = np.repeat(np.arange(4), [100, 200, 300, 400])
    chosen = held_out(labels, 0.1, seed=3)
    assert np.bincount(labels[chosen]).tolist() == [10, 20, 30, 40]
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, held_out(labels, 0.1, seed=3))
    assert (chosen != held_out(labels, 0.1, seed=4)).any()
    assert len(held_out(labels, 0.0, seed=3)) == 0
    assert len(held_out(labels, 1e-6, seed=3)) == 1


def test_a_few_of_each_class_nested_and_never_a_hidden_one() -> None:
    labels = np.repeat(np.arange(4), [100, 300, 300, 299])
    labels[100:395] = -1  # class 1 has five left
    # ceil(0.01 * 999 / 4) = 3 and ceil(0.1 * 999 / 4) = 25
    small, large = (few_per_class(labels, p, 4, seed=1) for p in (0.01, 0.1))
    assert np.bincount(labels[small]).tolist() == [3, 3, 3, 3]
    assert np.bincount(labels[large]).tolist() == [25, 5, 25, 25]
    assert set(small) < set(large)
    assert (small != few_per_class(labels, 0.01, 4, seed=2)).any()
    # 0.01 * 50000 / 10 is 50.0 plus nothing: 50 of each class
    many = few_per_class(np.arange(50_000) % 10, 0.01, 10, seed=0)
    assert np.bincount(many % 10).tolist() == [50] * 10


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([95, 5], (0, 0.95)),
        ([26, 74], None),  # of two equal classes three times the odds are 3 to 1
        ([25, 75], (1, 0.75)),
        ([24, *[76 / 9] * 9], None),  # of ten they are 1 to 3
        ([25, *[75 / 9] * 9], (0, 0.25)),
        ([9, *[91 / 99] * 99], None),  # less than a tenth
        ([10, *[90 / 99] * 99], (0, 0.1)),
        ([0, 7], (1, 1.0)),
        ([7], None),
        ([], None),
    ],
)
def test_a_class_of_far_more_images_than_others(
    counts: list[float], expected: tuple[int, float] | None
) -> None:
    labels = np.repeat(np.arange(len(counts)), [round(count * 99) for count in counts])
    assert majority(np.append(labels, -1), max(1, len(counts))) == expected

"""Devices: what profiles draw, how devices are dealt, and what is refused of a CSV."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from fedbench.bench.config import RunConfig
from fedbench.bench.config.yaml_files import installed
from fedbench.bench.data.partition import Partition
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.training.devices import Fleet, fleet_of, load_profile, rarity

HEAD = "flop_per_s,down_mb_per_s,up_mb_per_s"


def config_of(profile: object, seed: int = 0, **devices: object) -> RunConfig:
    values = {f"devices.{name}": value for name, value in devices.items()}
    return Fields.of("simclr").build({"devices.profile": str(profile), "seed": seed, **values})


def partition_of(owners: np.ndarray, num_clients: int) -> Partition:
    offsets = np.searchsorted(np.sort(owners), np.arange(num_clients + 1)).astype(np.int64)
    indices = np.argsort(owners, kind="stable")
    return Partition("iid", 1.0, 0, len(owners), 10, indices, offsets)


def dealt(config: RunConfig, partition: Partition, labels: np.ndarray) -> Fleet:
    fleet = fleet_of(config, partition, labels)
    assert fleet is not None
    return fleet


def of_size(count: int) -> tuple[Partition, np.ndarray]:
    return partition_of(np.arange(count), count), np.arange(count) % 10


@pytest.mark.parametrize("name", sorted(installed("devices")))
def test_a_shipped_profile_has_the_spread_that_it_states(name: str) -> None:
    profile, (partition, labels) = load_profile(name), of_size(20_000)
    fleet = dealt(config_of(name), partition, labels)
    assert profile.devices == name
    for field in ("flop_per_s", "down_mb_per_s", "up_mb_per_s"):
        figure, drawn = getattr(profile, field), getattr(fleet, field)
        if figure.median is not None and figure.sigma is not None:
            low, middle, high = np.quantile(drawn, norm.cdf([-1, 0, 1])) / figure.median
            assert middle == pytest.approx(1, abs=0.03)
            assert np.log([low, high]) == pytest.approx([-figure.sigma, figure.sigma], abs=0.03)


def test_four_times_as_many_phones_are_online_at_night_as_by_day() -> None:
    """The windows of `phones` cover the ratio that Bonawitz et al. 2019 report."""
    profile = load_profile("phones")
    starts = np.array(profile.online_from.values)
    full = np.full(len(starts), 1.0)
    hours = np.full(len(starts), profile.online_hours.value)
    fleet = Fleet(full, full, full, starts, hours, 0 * full)
    there = [fleet.online(hour * 3600.0).sum() for hour in range(24)]
    assert max(there) == 4 * min(there)
    assert there[23] == max(there) > there[12] == min(there)


def test_a_window_goes_over_midnight_and_comes_again_each_day() -> None:
    one = np.ones(1)
    fleet = Fleet(one, one, one, 22 * one, 8 * one, 0 * one)
    online = {hour for hour in range(24) if fleet.online(hour * 3600.0).all()}
    assert online == {22, 23, 0, 1, 2, 3, 4, 5}
    assert fleet.online(86_400.0 * 3 + 5.9 * 3600).all()


def test_devices_of_a_csv_are_shuffled_by_the_seed_or_drawn(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(HEAD + "\n" + "".join(f"{k + 1}e9,2,1\n" for k in range(12)), "utf-8")
    partition, labels = of_size(10)
    first, second = (dealt(config_of(file, seed), partition, labels) for seed in (0, 1))
    assert len({*first.flop_per_s.tolist()}) == 10  # of twelve devices, each goes to one client
    assert {*first.flop_per_s.tolist()} <= {k * 1e9 for k in range(1, 13)}
    assert first.flop_per_s.tolist() != second.flop_per_s.tolist()
    assert (first.online_hours == 24).all()
    assert not first.failure.any()
    partition, labels = of_size(1000)
    with pytest.raises(ConfigError, match=r"12 devices for 1,000 clients"):
        dealt(config_of(file), partition, labels)
    drawn = dealt(config_of(file, draw=True), partition, labels)
    assert {*drawn.flop_per_s.tolist()} == {k * 1e9 for k in range(1, 13)}


def test_a_csv_is_known_by_its_content(tmp_path: Path) -> None:
    from fedbench.bench.method.ids import training_id

    here, there, other = (tmp_path / f"{name}.csv" for name in "abc")
    for file, speed in ((here, 1), (there, 1), (other, 2)):
        file.write_text(f"{HEAD}\n{speed}e9,1,1\n", "utf-8")
    ids = [training_id(config_of(file, draw=True), "r") for file in (here, there, other)]
    assert ids[0] == ids[1] != ids[2]
    config = config_of(here, draw=True)
    here.write_text(f"{HEAD}\n3e9,1,1\n", "utf-8")
    with pytest.raises(ConfigError, match=r"profile_sha256"):
        dealt(config, *of_size(3))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_slow_devices_hold_rare_classes_as_much_as_asked(correlation: float) -> None:
    rng = np.random.default_rng(0)
    partition = partition_of(np.repeat(np.arange(2000), 5), 2000)
    labels = rng.choice(10, 10_000, p=np.arange(10, 0, -1) / 55)
    fleet = dealt(config_of("phones", correlation=correlation), partition, labels)
    plain = dealt(config_of("phones"), partition, labels)
    assert np.array_equal(np.sort(fleet.flop_per_s), np.sort(plain.flop_per_s))
    found = spearmanr(-fleet.flop_per_s, rarity(partition, labels)).statistic
    assert found == pytest.approx(correlation, abs=0.06)


def test_rarity_is_the_mean_rank_of_a_clients_classes() -> None:
    """Classes 0, 1, 2 with 3, 2, 1 images have the ranks 0, 1/9, 2/9; the absent seven follow."""
    partition = partition_of(np.array([0, 0, 1, 1, 2, 2]), 4)
    labels = np.array([0, 0, 0, 1, 1, 2])
    expected = [0, 1 / 18, 1 / 6, 0]  # the last client holds nothing
    assert rarity(partition, labels).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("head", "row", "problem"),
    [
        (HEAD, "1e9,2,-1", r"line 2: up_mb_per_s must be above 0 \(got '-1'\)"),
        (HEAD, "1e9,,1", r"down_mb_per_s must be above 0 \(got ''\)"),
        (HEAD, "1e9,fast,1", r"got 'fast'"),
        (HEAD, "inf,1,1", r"flop_per_s"),
        (HEAD, "", r"no row"),
        (HEAD + ",failure", "1,1,1,1", r"failure must be from 0 to below 1"),
        (HEAD + ",online_from", "1,1,1,24", r"online_from must be an hour"),
        (HEAD + ",speed", "1,1,1,1", r"unknown column 'speed'"),
        ("flop_per_s,up_mb_per_s", "1,1", r"no column down_mb_per_s"),
        (HEAD, '1,1,1,1,1\n1,1\n"', r"no CSV|must be"),
    ],
)
def test_a_csv_that_is_none_of_devices_is_refused_in_a_line(
    tmp_path: Path, head: str, row: str, problem: str
) -> None:
    file = tmp_path / "own.csv"
    file.write_text(f"{head}\n{row}\n", "utf-8")
    with pytest.raises(ConfigError, match=problem) as caught:
        config_of(file)
    assert "\n" not in str(caught.value)


def test_profiles_and_labels_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'phones'"):
        config_of("phone")
    with pytest.raises(ConfigError, match=r"cannot read"):
        config_of(tmp_path / "absent.csv")
    partition, labels = of_size(10)
    hidden: Any = np.full_like(labels, -1)
    with pytest.raises(ConfigError, match=r"labels of all images"):
        dealt(config_of("phones", correlation=0.5), partition, hidden)
    assert fleet_of(config_of("uniform"), partition, labels) is None

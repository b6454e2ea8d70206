"""Devices of the clients: speed, links, hours and failures, dealt to them by the seed.

A profile is a file of `search_spaces/devices`, whose figures name their sources, or a CSV:

    flop_per_s,down_mb_per_s,up_mb_per_s,online_from,online_hours,failure
    1.8e9,5.2,3.1,22,8,0.08

of which the last three columns may be left out: always online, never failing.
"""

import hashlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.config.yaml_files import installed, load_yaml
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.partition import Partition
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.system.files import user_path
from fedbench.bench.system.seeding import numpy_generator

UNIFORM = "uniform"
"""The profile without devices: nothing is simulated."""
_FOLDER = "devices"
_LIMITS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "flop_per_s": ("above 0", lambda x: x > 0),
    "down_mb_per_s": ("above 0", lambda x: x > 0),
    "up_mb_per_s": ("above 0", lambda x: x > 0),
    "online_from": ("an hour from 0 to below 24", lambda x: (x >= 0) & (x < 24)),
    "online_hours": ("above 0 and at most 24", lambda x: (x > 0) & (x <= 24)),
    "failure": ("from 0 to below 1", lambda x: (x >= 0) & (x < 1)),
}
_OPTIONAL = {"online_from": 0.0, "online_hours": 24.0, "failure": 0.0}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The device of each client, in arrays (K,).

    Attributes:
        flop_per_s: speed of training [FLOP/s].
        down_mb_per_s, up_mb_per_s: links [1e6 B/s].
        online_from, online_hours: hour of the day from which it takes part, in [0, 24), and for how
            long, in (0, 24].
        failure: chance to drop out of a round, in [0, 1).
    """

    flop_per_s: Floats
    down_mb_per_s: Floats
    up_mb_per_s: Floats
    online_from: Floats
    online_hours: Floats
    failure: Floats

    def online(self, clock: float) -> npt.NDArray[np.bool_]:
        """Return who is online at a time [s] since midnight of the first day, (K,)."""
        hour = clock / 3600 % 24
        there: npt.NDArray[np.bool_] = (hour - self.online_from) % 24 < self.online_hours
        return there

    def taken(self, places: npt.NDArray[np.int64]) -> Self:
        """Return the devices at some places, in their order."""
        return type(self)(**{name: getattr(self, name)[places] for name in _LIMITS})


class _Figure(Strict):
    """Distribution of a field: one value, equally likely ones, or a log-normal."""

    value: float | None = None
    values: tuple[float, ...] = ()
    median: float | None = None
    sigma: float | None = None  # standard deviation of the natural logarithm
    source: str
    year: int
    licence: str

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw `count` numbers, (count,)."""
        if self.values:
            return rng.choice(np.array(self.values), count)
        if self.median is None or self.sigma is None:
            return np.full(count, self.value, np.float64)
        return self.median * np.exp(self.sigma * rng.standard_normal(count))


class Profile(Strict):
    """A shipped profile; each figure names its source."""

    devices: str
    description: str
    flop_per_s: _Figure
    down_mb_per_s: _Figure
    up_mb_per_s: _Figure
    online_from: _Figure
    online_hours: _Figure
    failure: _Figure


@cache
def load_profile(name: str) -> Profile:
    """Return a shipped profile.

    Raises:
        UnknownNameError: for another name.
    """
    files = installed(_FOLDER)
    if name not in files:
        more = "; devices of your own are a file whose name ends in .csv"
        raise UnknownNameError("device profile", name, [UNIFORM, *files], more)
    return Profile.model_validate(load_yaml(files[name]))


def with_devices(config: RunConfig) -> RunConfig:
    """Return the configuration with place and hash of the CSV that it takes devices from.

    Raises:
        ConfigError: for an unknown profile, a CSV that cannot be read, or one of another hash.
    """
    devices = config.devices
    if not devices.profile.endswith(".csv"):
        if devices.profile != UNIFORM:
            load_profile(devices.profile)
        return config
    place = user_path(devices.profile).resolve()
    _, found = _csv(place, devices.profile_sha256)
    update = {"profile": str(place), "profile_sha256": found}
    return config.model_copy(update={"devices": devices.model_copy(update=update)})


def _csv(path: Path, sha256: str | None) -> tuple[Fleet, str]:
    """Return the devices of a CSV, one a row, and the hash of its bytes: the given one, if any.

    Raises:
        ConfigError: naming line and column of what is missing, no number or outside its range.
    """
    import pandas as pd

    name = f"devices.profile: {path}"
    try:
        data = path.read_bytes()
    except OSError as err:
        raise ConfigError(f"devices.profile: cannot read {path} ({err.strerror})") from err
    if sha256 not in (None, found := hashlib.sha256(data).hexdigest()):
        raise ConfigError(
            f"{name} has SHA-256 {found[:12]}…, not {sha256}; put that file"
            " there, or set devices.profile_sha256=null"
        )
    try:
        table = pd.read_csv(
            io.BytesIO(data), skipinitialspace=True, dtype=str, keep_default_na=False
        )
    except ValueError as err:  # pandas' errors of parsing are ValueErrors
        raise ConfigError(f"{name}: is no CSV ({' '.join(str(err).split())[:100]})") from err
    if unknown := [*table.columns.difference([*_LIMITS], sort=False)]:
        raise ConfigError(f"{name}: unknown column {unknown[0]!r}; there are {', '.join(_LIMITS)}")
    columns: dict[str, Floats] = {}
    for field, (allowed, fits) in _LIMITS.items():
        if field not in table and field not in _OPTIONAL:
            raise ConfigError(f"{name}: has no column {field}")
        if field not in table:
            columns[field] = np.full(len(table), _OPTIONAL[field])
            continue
        values = pd.to_numeric(table[field], errors="coerce").to_numpy(np.float64)
        wrong = ~(np.isfinite(values) & fits(values))
        if wrong.any():
            row = int(wrong.argmax())
            raise ConfigError(
                f"{name}: line {row + 2}: {field} must be {allowed} (got {table[field][row]!r})"
            )
        columns[field] = values
    if not len(table):
        raise ConfigError(f"{name}: has no row")
    return Fleet(**columns), found


def fleet_of(config: RunConfig, partition: Partition, labels: npt.NDArray[Any]) -> Fleet | None:
    """Deal devices to clients by the run's seed; None for the profile `uniform`.

    A shipped profile is drawn for each client. The devices of a CSV are shuffled, or drawn with
    `devices.draw`. With `devices.correlation` c the slowest device goes to the client with the
    largest c z + sqrt(1 - c²) e, where z is the normal score of its rank by rarity and e a standard
    normal draw, so that ranks of slowness and rarity correlate by about c.

    Args:
        config: of the run.
        partition: each client's images.
        labels: of all training images, (N,).

    Raises:
        ConfigError: for fewer devices than clients, or rarity without labels.
    """
    devices, seed, count = config.devices, config.seed, partition.num_clients
    if devices.profile == UNIFORM:
        return None
    rng = numpy_generator(seed, "devices")
    if devices.profile.endswith(".csv"):
        known, _ = _csv(Path(devices.profile), devices.profile_sha256)
        size = len(known.failure)
        if size < count and not devices.draw:
            raise ConfigError(
                f"devices.profile: {devices.profile} has {size:,} devices for {count:,} clients;"
                " add rows, or let clients share them by devices.draw=true"
            )
        places = rng.integers(size, size=count) if devices.draw else rng.permutation(size)[:count]
        fleet = known.taken(places)
    else:
        profile = load_profile(devices.profile)
        fleet = Fleet(**{name: getattr(profile, name).draw(count, rng) for name in _LIMITS})
    if devices.failure is not None:
        fleet = replace(fleet, failure=np.full(count, devices.failure))
    if not devices.correlation:
        return fleet
    from scipy.special import ndtri

    if not (labels[partition.indices] != HIDDEN).all():
        raise ConfigError(
            "devices.correlation: which classes are rare takes labels of all images of clients; set"
            " devices.correlation=0"
        )
    order = numpy_generator(seed, "devices-order")
    # Equal rarities in random order.
    ranks = np.lexsort((order.random(count), rarity(partition, labels))).argsort()
    score = devices.correlation * ndtri((ranks + 0.5) / count)
    score += math.sqrt(1 - devices.correlation**2) * order.standard_normal(count)
    places = np.empty(count, np.int64)
    places[np.argsort(-score, kind="stable")] = np.argsort(fleet.flop_per_s, kind="stable")
    return fleet.taken(places)


def rarity(partition: Partition, labels: npt.NDArray[Any]) -> Floats:
    """Return how rare each client's classes are, (K,), from 0 (all the commonest) to 1.

    The mean over its images of the rank of their class by number of images; of equally frequent
    classes the one with the higher number counts as rarer. A client without images has 0.
    """
    held = labels[partition.indices]
    counts = np.bincount(held, minlength=partition.num_classes)
    ranks = np.empty(len(counts))
    ranks[np.argsort(-counts, kind="stable")] = np.linspace(0, 1, len(counts))
    owners = np.repeat(np.arange(partition.num_clients), partition.sizes)
    sums = np.bincount(owners, ranks[held], partition.num_clients)
    mean: Floats = sums / np.maximum(partition.sizes, 1)
    return mean

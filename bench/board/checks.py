"""Checks of one row and its curve that need no run: each names what it is that cannot be true."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbench.bench.board.data_facts import DataFacts
from fedbench.bench.board.expected import Expected
from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.method import ACTIVATIONS
from fedbench.bench.results.leaderboard.studies import best_trial
from fedbench.bench.results.metrics import is_accuracy
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import derived
from fedbench.bench.runs.run import canonical
from fedbench.bench.system.errors import FedbenchError, StoreError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.numerics import Platform
from fedbench.bench.system.packages import DISTRIBUTION, installed_version
from fedbench.bench.training.ledger import BYTES_PER_NUMBER, Flow
from fedbench.bench.training.steps import partition_of
from fedbench.bench.training.trainer import drawn

_EXACT = 1e-9
"""Largest error of sums in double precision here."""
_CLOCK = timedelta(days=1)
"""By which clocks of two machines may differ."""
_FIRST = datetime(2026, 11, 21, tzinfo=UTC)
"""Day of the first commit of this project; no run is older."""


class Unchecked(Exception):  # noqa: N818
    """Raised by a check that cannot be made here; the text says why."""


class Point(BaseModel):
    """One round of a curve; further columns are traffic, loss terms and metrics."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    round_index: int = Field(ge=0)
    loss: float | None = None
    cohort_size: int = Field(ge=0)
    idle_clients: int = Field(ge=0)
    num_steps: int = Field(ge=0)
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    std_ratio: float
    effective_rank: float
    projection_std_ratio: float
    collapsed: bool
    seconds: float = Field(ge=0)

    def flow(self, direction: str, group: str) -> Flow | None:
        """Return the traffic of a tensor group in this round; None if there was none."""
        start = f"traffic.{direction}.{group}."
        extra = self.model_extra or {}
        if extra.get(f"{start}messages") is None:
            return None
        counts: list[int] = []
        for name in ("messages", "numbers", "bytes", "revealing"):
            value = extra.get(f"{start}{name}")
            if not isinstance(value, int):
                raise StoreError(f"curve: {start}{name} is {value!r}, no number")
            counts.append(value)
        smallest = extra.get(f"{start}smallest")
        messages, size, num_bytes, revealing = counts
        least = smallest if isinstance(smallest, int) else None
        return Flow(messages, size, num_bytes, revealing, least)

    @property
    def groups(self) -> set[tuple[str, str]]:
        """Direction and tensor group of all its traffic."""
        names = [
            name.split(".", 2) for name, v in (self.model_extra or {}).items() if v is not None
        ]
        found = [name for name in names if name[0] == "traffic" and len(name) == 3]
        return {(direction, rest.rpartition(".")[0]) for _, direction, rest in found}

    @property
    def evaluated(self) -> bool:
        """True if the encoder was evaluated after this round."""
        return any(
            name.startswith("metrics.") and value is not None
            for name, value in (self.model_extra or {}).items()
        )


@dataclass(frozen=True)
class Claim:
    """A row to check, with what is known about its configuration and data.

    Attributes:
        row: the row.
        facts: of its data revision; None if it is not known here.
        config: its configuration; None if it is none.
        expected: what follows from it; None where that is not known.
        checkout: folder of a git clone with the commits that are known; None = there is none.
        points: of its curve; empty if they are not of their types.
        store: has the study.
        study_id: of the study that its settings are from; None = it is not known here.
    """

    row: Row
    facts: DataFacts | None
    config: RunConfig | None
    expected: Expected | None
    checkout: Path | None
    points: tuple[Point, ...]
    store: Store | None = None
    study_id: str | None = None

    def need_config(self) -> RunConfig:
        """Return the configuration; raise `Unchecked` without one."""
        if self.config is None:
            raise Unchecked("its configuration is not valid")
        return self.config

    def need(self) -> tuple[RunConfig, DataFacts, Expected]:
        """Return configuration, facts and what follows; raise `Unchecked` without one."""
        config = self.need_config()
        if self.facts is None:
            raise Unchecked("its data revision is not known")
        if self.expected is None:
            raise Unchecked("its method cannot be built here")
        return config, self.facts, self.expected

    @property
    def metrics(self) -> dict[str, float]:
        """Further metrics of the row that were measured."""
        numbers = json.loads(self.row.metrics_json or "{}")
        return {name: float(value) for name, value in numbers.items() if value is not None}


Check = Callable[[Claim], Iterator[str]]
"""Yields one line for each contradiction; raises `Unchecked` if it cannot be made."""


def points_of(raw: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    """Return the points of a curve with their types.

    Raises:
        StoreError: naming the first value that has another.
    """
    try:
        return tuple(
            Point.model_validate({k: v for k, v in point.items() if v is not None}) for point in raw
        )
    except ValidationError as err:
        first = err.errors()[0]
        raise StoreError(f"curve: {'.'.join(map(str, first['loc']))}: {first['msg']}") from err


def check_configuration(claim: Claim) -> Iterator[str]:
    """Valid, written in full, and the identities and columns that follow from it."""
    row = claim.row
    if row.benchmark_version != BENCHMARK_VERSION:
        yield (
            f"benchmark version {row.benchmark_version}, this fedbench checks {BENCHMARK_VERSION};"
            f" install fedbench {row.package_version}"
        )
        return
    try:
        config = row.config
        whole = canonical(config)
    except FedbenchError as err:
        yield str(err).removeprefix(f"run {row.row_id}: ")
        return
    if whole.spec != config.spec or whole.method != config.method:
        yield f"method fields {config.method} are not those that {config.spec!r} has in full"
    if canonical_json(json.loads(row.config_json)) != row.config_json:
        yield "config_json is not canonical JSON"
    for name, value in derived(config, row.dataset_revision).items():
        if getattr(row, name) != value:
            yield f"{name} is {getattr(row, name)}, but its configuration gives {value}"
    if row.tuned != (row.study_id is not None):
        yield f"tuned is {row.tuned}, but study_id is {row.study_id}"
    if row.selection == "label-free" and row.study_id is None:
        yield "selection is label-free, but no study is named"
    yield from _study(claim)
    if row.status == "error":
        yield f"it failed ({row.error}): there is no result"


def _study(claim: Claim) -> Iterator[str]:
    """Yield how the settings of a row are not the best ones of the study that it names."""
    row, store, study_id = claim.row, claim.store, claim.study_id
    if store is None or study_id is None:
        return
    meta, trial = store.study(study_id) or {}, best_trial(store.trials(study_id))
    if not meta.get("finished_at") or trial is None:
        yield f"study {study_id} has no best trial"
    elif meta.get("spec") != row.method:
        yield f"study {study_id} is of {meta.get('spec')!r}"
    else:
        values = flatten(json.loads(row.config_json)) | json.loads(row.scaled_json or "{}")
        for name, value in trial["params"].items():
            if values.get(name) != value:
                yield (
                    f"{name} is {values.get(name)}, but the best trial of study {study_id} has"
                    f" {value}"
                )


def check_code(claim: Claim) -> Iterator[str]:
    """The commit is one of this project's, its sources unchanged; a wheel is of a known version."""
    row = claim.row
    if row.git_sha is None:
        here = installed_version(DISTRIBUTION) or "unknown"
        if row.package_version != here:
            raise Unchecked(
                f"it is of a wheel of version {row.package_version}, and {here} is here"
            )
        return
    if row.git_sha.endswith("-dirty"):
        yield f"its code is commit {row.git_sha.removesuffix('-dirty')} with changes nobody has"
        return
    sha = row.git_sha.rpartition("-g")[2]
    if not re.fullmatch(r"[0-9a-f]{7,40}", sha):
        yield f"git_sha {row.git_sha[:50]!r} is no commit"
        return
    if claim.checkout is None or (known := _known_commit(claim.checkout, sha)) is None:
        raise Unchecked("no clone of the project with its whole history is here")
    if not known:
        yield f"commit {sha} is not in the history of this project"


@lru_cache(maxsize=1024)
def _known_commit(checkout: Path, sha: str) -> bool | None:
    """Return True for a commit before HEAD or of a tag; None where the history is not whole."""
    shallow = _git(checkout, "rev-parse", "--is-shallow-repository")
    if shallow is None or shallow.strip() != "false":
        return None
    if _git(checkout, "cat-file", "-e", f"{sha}^{{commit}}") is None:
        return False
    if _git(checkout, "merge-base", "--is-ancestor", sha, "HEAD") is not None:
        return True
    return bool((_git(checkout, "tag", "--contains", sha) or "").strip())


def _git(checkout: Path, *words: str) -> str | None:
    """Return the output of git; None if it fails."""
    command = ["git", "-C", str(checkout), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def check_data(claim: Claim) -> Iterator[str]:
    """The revision is known, its name and subsets are those, no test image is in training."""
    row, facts = claim.row, claim.facts
    if facts is None:
        yield (
            f"data revision {row.dataset_revision[:12]} is none that is known; get the data and"
            " name their cache with --data-dir"
        )
        return
    if row.dataset != facts.name:
        yield f"dataset is {row.dataset!r}, but the revision is that of {facts.name!r}"
    data = claim.need_config().data
    if data.num_clients > facts.num_train:
        yield f"{data.num_clients:,} clients share {facts.num_train:,} training images"
    sizes = (facts.num_train, facts.num_test)
    taken = (data.train_subset, data.test_subset)
    for split, asked, size, full in zip(("train", "test"), taken, sizes, facts.full, strict=True):
        if size != (full if asked is None else asked):
            yield f"data.{split}_subset is {asked}, but the revision has {size:,} {split} images"
    if ":" in facts.name and facts.shared_images:  # published splits are what they are
        shared, test = facts.shared_images, facts.num_test
        yield f"{shared:,} of {test:,} test images are among its training images"


def check_partition(claim: Claim) -> Iterator[str]:
    """The partition of the data, made again where the labels are here."""
    config = claim.need_config()
    if claim.facts is None or claim.facts.dataset is None:
        raise Unchecked("its data are not in the cache here")
    if config.data.num_clients > claim.facts.num_train:
        raise Unchecked("it has more clients than images")
    try:
        made = partition_of(claim.facts.dataset, config).hash
    except FedbenchError as err:
        yield f"its data cannot be given to clients as it says: {err}"
        return
    if made != claim.row.partition_hash:
        yield f"partition_hash is {claim.row.partition_hash}, but its configuration gives {made}"


def check_rounds(claim: Claim) -> Iterator[str]:
    """The curve has every round, cohorts and steps that can be, and ends in the row's numbers."""
    row, points = claim.row, claim.points
    config, facts, expected = claim.need()
    if [point.round_index for point in points] != list(range(len(points))):
        yield "the rounds of its curve are not 1, 2, 3, …"
        return
    total, done = expected.num_rounds, row.rounds_done or 0
    if row.status == "ok" and not len(points) == done == total:
        yield f"its curve has {len(points)} rounds, the row {done}, its configuration {total}"
        return
    if len(points) > total or abs(len(points) - done) > 1:
        yield f"its curve has {len(points)} rounds, the row {done}, its configuration {total}"
        return
    sizes = _sizes(claim)
    for point in points:
        plan, number = expected.plan(point.round_index), point.round_index + 1
        most = config.data.num_clients
        if plan.cohort == "sampled" and config.privacy.clip is None:
            most = min(most, config.cohort_size)
        batches = -(-facts.num_train // config.client.batch_size) + point.cohort_size
        if sizes is not None and plan.cohort == "sampled":
            cohort = drawn(config, list(sizes), point.round_index)
            if point.cohort_size != len(cohort):
                yield (
                    f"round {number}: a cohort of {point.cohort_size} clients, its seed draws"
                    f" {len(cohort)}"
                )
                return
            batches = sum(-(-sizes[k] // config.client.batch_size) for k in cohort)
        if point.cohort_size > most:
            yield f"round {number}: a cohort of {point.cohort_size} clients, at most {most} can be"
        elif point.idle_clients > point.cohort_size:
            yield f"round {number}: {point.idle_clients} of {point.cohort_size} clients are idle"
        elif point.num_steps > plan.local_epochs * batches:
            yield f"round {number}: {point.num_steps} local steps, more than its data have"
        elif point.evaluated != config.evaluates_after(number, total):
            found = "an" if point.evaluated else "no"
            yield f"round {number}: {found} evaluation, against `every` and `rounds`"
        else:
            continue
        return
    if points and row.status == "ok":
        yield from _last_round(claim, points)


def _sizes(claim: Claim) -> dict[int, int] | None:
    """Return the images of each client that has some; None if they are not known here."""
    if claim.facts is None or claim.facts.dataset is None or claim.expected is None:
        return None
    shares = partition_of(claim.facts.dataset, claim.need_config())
    sizes = shares.pooled().sizes if claim.expected.pooled else shares.sizes
    return {k: int(size) for k, size in enumerate(sizes) if size}


def _last_round(claim: Claim, points: Sequence[Point]) -> Iterator[str]:
    row, metrics, last = claim.row, claim.metrics, points[-1]
    pairs: list[tuple[str, float | None, float | None]] = [
        ("final_loss", row.final_loss, last.loss),
        ("idle_clients", metrics.get("idle_clients"), sum(p.idle_clients for p in points)),
    ]
    if claim.expected is not None and not claim.expected.on_clients:
        spread = metrics.get("projection_std_ratio")
        pairs += [
            ("std_ratio", row.std_ratio, last.std_ratio),
            ("effective_rank", row.effective_rank, last.effective_rank),
            ("projection_std_ratio", spread, last.projection_std_ratio),
            ("collapsed", row.collapsed, last.collapsed),
        ]
    for name, of_row, of_curve in pairs:
        if of_row != of_curve:
            yield f"{name} is {of_row}, but its curve ends in {of_curve}"


def check_ledger(claim: Claim) -> Iterator[str]:
    """Parameters and bytes, computed again: rounds, clients in each, tensors of the sharing table.

    Extras, whose lengths may follow the images, must be declared, and their sums must agree.
    """
    row = claim.row
    config, _, expected = claim.need()
    if row.num_parameters != expected.num_parameters:
        yield f"num_parameters is {row.num_parameters}, its net has {expected.num_parameters:,}"
    if row.secure_sum is not None and row.secure_sum != expected.secure_sum:
        yield f"secure_sum is {row.secure_sum}, its method's is {expected.secure_sum}"
    private = config.privacy.clip is not None or expected.budgets
    if row.epsilon is not None and not private:
        yield f"epsilon is {row.epsilon}, but nothing in its configuration is private"
    for point in claim.points:
        if problem := next(_round_traffic(point, expected), None):
            yield f"round {point.round_index + 1}: {problem}"
            return
    yield from _totals(claim)


def _round_traffic(point: Point, expected: Expected) -> Iterator[str]:
    """Yield what is wrong with the messages of one round."""
    senders = point.cohort_size - point.idle_clients
    sums = {"up": 0, "down": 0}
    for direction, group in sorted(point.groups):
        flow = point.flow(direction, group)
        if flow is None or direction not in sums:
            yield f"traffic {direction} of {group!r} is not whole"
            return
        sums[direction] += flow.bytes
        if (flow.revealing > 0) != (flow.smallest is not None and flow.smallest < 2):
            yield f"{flow.revealing} revealing {group!r}, the smallest of {flow.smallest} images"
        tensors = expected.up if direction == "up" else expected.down
        if group in tensors.flows[direction]:
            continue
        if group == ACTIVATIONS and expected.activations:
            if flow.revealing != flow.messages:
                yield f"{group!r} hold single images, but are not counted as revealing"
            continue
        if direction == "down" or group not in expected.extras:
            yield f"{group!r} goes {direction}, which its method does not send"
        visits = point.cohort_size * (2 if expected.surveyed else 1)
        if flow.messages > visits:
            yield f"{flow.messages} messages {group!r} from {point.cohort_size} clients"
        if flow.bytes < flow.numbers or flow.bytes > 2 * BYTES_PER_NUMBER * flow.numbers:
            yield f"{flow.numbers:,} numbers {group!r} in {flow.bytes:,} bytes"
        extra = expected.extras.get(group)
        if extra is not None and extra.per_sample and flow.revealing != flow.messages:
            yield f"{group!r} holds single images, but is not counted as revealing"
    for direction, tensors, clients in (
        ("up", expected.up, senders),
        ("down", expected.down, point.cohort_size),
    ):
        for group, one in tensors.flows[direction].items():
            got = point.flow(direction, group) or Flow()
            for name in ("messages", "numbers", "bytes", "revealing"):
                is_, due = getattr(got, name), getattr(one, name) * clients
                if is_ != due:
                    yield f"{name} {direction} of {group!r} are {is_:,}, its tensors give {due:,}"
    for direction, recorded in (("up", point.bytes_up), ("down", point.bytes_down)):
        if sums[direction] != recorded:
            yield f"bytes_{direction} is {recorded:,}, its messages have {sums[direction]:,}"


def _totals(claim: Claim) -> Iterator[str]:
    """Yield what of the row's traffic is not the sum over its rounds."""
    row, points = claim.row, claim.points
    traffic = json.loads(row.traffic_json or "{}")
    whole = row.status == "ok"  # a run that diverged also sent messages of a round without a record
    for direction, recorded in (("up", row.bytes_up), ("down", row.bytes_down)):
        flows = traffic.get(direction)
        if not isinstance(flows, dict) or not all(isinstance(f, dict) for f in flows.values()):
            yield f"traffic_json says nothing of messages {direction}"
            continue
        for group in sorted({*flows, *(g for p in points for d, g in p.groups if d == direction)}):
            of_rounds = [f for point in points if (f := point.flow(direction, group)) is not None]
            for name in ("messages", "numbers", "bytes", "revealing"):
                total = sum(getattr(flow, name) for flow in of_rounds)
                said = flows.get(group, {}).get(name, 0)
                if said != total and (whole or not isinstance(said, int) or said < total):
                    yield (
                        f"traffic_json has {said} {name} {direction} of {group!r}, its rounds"
                        f" {total}"
                    )
                    return
        if recorded != (total := sum(flow.get("bytes", 0) for flow in flows.values())):
            yield f"bytes_{direction} is {recorded}, its messages have {total}"
    sent = traffic.get("up") or {}
    revealing = sum(flow.get("revealing", 0) for flow in sent.values())
    smallest = [flow["smallest"] for flow in sent.values() if flow.get("smallest") is not None]
    if row.revealing_messages != revealing:
        yield f"revealing_messages is {row.revealing_messages}, its messages have {revealing}"
    if row.smallest_group != min(smallest, default=None):
        yield f"smallest_group is {row.smallest_group}, its messages say otherwise"


_MEASURED_BY = {"knn_acc": ("knn",), "linear_acc": ("linear", "mlp")}
_ACCURACIES = ("knn_acc", "linear_acc", "linear_paper_acc")
_ELSEWHERE = re.compile(r"_(local|train)_")  # accuracies on other images than the test split
_LARGEST = 1e15
_RANGES: Mapping[str, tuple[float, float]] = {
    r"\w+_acc|rho|collapsed|clusterability": (0, 1),
    r"align|self_clustering": (-1, 1),
    r"global_(align|rho|sep)|sep": (-_LARGEST, 1),
    r"effective_rank|rankme(_centred)?|stable_rank|nesum|participation_ratio|lidar": (0, math.inf),
    r"(projection_)?std_ratio": (0, 1.5),
    r"sigreg": (0, 10.1),
    r"angle\w*": (0, 180),
    r"\w+_acc_std": (0, 0.5),
    r"\w+_std|relative_movement|idle_clients|objective_(bytes|epsilon)": (0, _LARGEST),
    r".*": (-_LARGEST, _LARGEST),
}
"""Least and largest value of a metric, by the first pattern that fits its name; inf stands for the
length of feature vectors and projections. Unit vectors have std_ratio <= 1, up to n / (n - 1), and
sigreg is at most 4 sqrt(2 pi)."""


def check_metrics(claim: Claim) -> Iterator[str]:
    """Metrics within their ranges, sums and differences that agree, whole test images."""
    row, config = claim.row, claim.need_config()
    if row.status != "ok":
        return
    evaluation, further = config.evaluation, claim.metrics
    sides: list[tuple[str, dict[str, float | None]]] = []
    names = ("objective", "align", "unif", "std_ratio", "effective_rank", *_ACCURACIES)
    sides.append(("", {**further, **{name: getattr(row, name) for name in names}}))
    before: dict[str, float | None] = {
        name.removeprefix("untrained_"): v for name, v in further.items() if name[:2] == "un"
    }
    for name in ("objective", "knn_acc", "linear_acc"):
        before[name] = getattr(row, f"untrained_{name}")
    if evaluation.untrained:
        sides.append(("untrained_", before))
    elif any(before[name] is not None for name in ("objective", "knn_acc", "linear_acc")):
        yield "metrics before training, which its configuration does not measure"
    for prefix, values in sides:
        yield from (f"{prefix}{text}" for text in _identities(values, claim, config))
        yield from (f"{prefix}{text}" for text in _out_of_range(values, claim, config))
        for name, protocols in _MEASURED_BY.items():
            asked = any(protocol in evaluation.protocols for protocol in protocols)
            if (values.get(name) is not None) != asked:
                yield f"{prefix}{name} is {values.get(name)}, against evaluation.protocols"
    for point in claim.points:
        measured = {
            name.removeprefix("metrics."): value
            for name, value in (point.model_extra or {}).items()
            if name.startswith("metrics.")
        }
        for text in _out_of_range(measured, claim, config):
            yield f"round {point.round_index + 1}: {text}"
            return
    if row.std_ratio is not None and row.std_ratio < 0.05 and not row.collapsed:
        yield f"collapsed is {row.collapsed} at a std_ratio of {row.std_ratio:.3g}"


def _out_of_range(values: Mapping[str, Any], claim: Claim, config: RunConfig) -> Iterator[str]:
    """Yield metrics that no encoder has; noise on sums takes some scores anywhere."""
    length = _LARGEST if claim.expected is None else claim.expected.dim
    for name, value in values.items():
        if value is None:
            continue
        low, high = next(limits for p, limits in _RANGES.items() if re.fullmatch(p, name))
        if config.evaluation.objective_noise is not None and not name.endswith("_acc"):
            low, high = -_LARGEST, _LARGEST
        high = length if high == math.inf else high
        if not low - 1e-6 <= value <= high + 1e-6:
            yield f"{name} is {value}, outside {low:g} to {high:g}"


def _identities(
    values: Mapping[str, float | None], claim: Claim, config: RunConfig
) -> Iterator[str]:
    """Yield contradictions between metrics of one encoder."""
    evaluation = config.evaluation
    align, unif, objective = (values.get(name) for name in ("align", "unif", "objective"))
    bound = 1 / evaluation.objective_temperature
    if unif is not None and abs(unif) > bound * (1 + _EXACT):
        yield f"unif is {unif}, beyond 1 / temperature = {bound:g}"
    if objective is None or align is None or unif is None:
        yield "objective, align or unif is missing"
    else:
        total = align + evaluation.objective_weight * unif
        if not math.isclose(objective, total, rel_tol=_EXACT, abs_tol=_EXACT):
            weight = evaluation.objective_weight
            yield f"objective is {objective}, but align + {weight:g} unif = {total}"
    delta, rho, sep = (values.get(name) for name in ("delta_views", "rho", "sep"))
    if align is not None and delta is not None and abs(delta - (1 - align)) > _EXACT:
        yield f"delta_views is {delta}, but 1 - align = {1 - align}"
    if claim.expected is None or claim.facts is None or claim.expected.on_clients:
        return  # means over clients
    if (
        sep is not None
        and delta is not None
        and rho
        and not math.isclose(sep, 1 - delta / rho, rel_tol=1e-6, abs_tol=1e-6)
    ):
        yield f"sep is {sep}, but 1 - delta_views / rho = {1 - delta / rho}"
    count = claim.facts.num_test
    for name, value in values.items():
        if value is None or not is_accuracy(name) or _ELSEWHERE.search(name):
            continue
        if abs(value * count - round(value * count)) > 1e-6 * count:
            yield f"{name} is {value}, no share of {count:,} test images"


def check_environment(claim: Claim) -> Iterator[str]:
    """Times in their order, and the numeric platform's name with the hash of its record."""
    row = claim.row
    if row.finished_at < row.started_at:
        yield f"it finished at {row.finished_at:%F %T}, before it started"
    if row.started_at < _FIRST - _CLOCK:
        yield f"it started at {row.started_at:%F %T}, before there was a fedbench"
    if row.finished_at > datetime.now(UTC) + _CLOCK:
        yield f"it finished at {row.finished_at:%F %T}, which is not yet"
    in_one_go = row.resumes == 0 and row.measured_from is None
    span = (row.finished_at - row.started_at).total_seconds()
    wall, train = row.wall_seconds or 0.0, row.train_seconds or 0.0
    if in_one_go and wall > span + 1:
        yield f"wall_seconds is {wall:.0f}, but it ran for {span:.0f} s"
    if in_one_go and train > wall + 1:
        yield f"train_seconds is {train:.0f}, more than all of its {wall:.0f} s"
    rounds = sum(point.seconds for point in claim.points)
    if in_one_go and claim.points and train > rounds * 1.05 + 1:
        yield f"train_seconds is {train:.0f}, but its rounds took {rounds:.0f} s"
    if in_one_go and rounds > wall + 1:
        yield f"wall_seconds is {wall:.0f}, but its rounds took {rounds:.0f} s"
    records = json.loads(row.platform_json or "[]")
    if not records or row.platform is None:
        yield "it names no numeric platform"
        return
    try:
        names = [
            (record["name"], str(Platform(**{k: v for k, v in record.items() if k != "name"})))
            for record in records
        ]
    except (KeyError, TypeError, AttributeError):
        yield "the record of its numeric platform is not whole"
        return
    for name, made in names:
        if name != made:
            yield f"platform {str(name)[:80]!r} is not the name of its record, {made!r}"
    if row.platform != ", then ".join(str(name) for name, _ in names):
        yield f"platform is {row.platform[:80]!r}, but its record is that of {names[0][0]!r}"
    versions = json.loads(row.env_json or "{}")
    torch = str(records[-1].get("torch")).partition("+")[0]
    if versions.get("torch") is not None and str(versions["torch"]).partition("+")[0] != torch:
        yield f"env_json has torch {versions['torch']}, its numeric platform {torch}"
    device, kind = (row.device or "").partition(":")[0], str(records[-1].get("device"))
    if device and not kind.startswith(device):
        yield f"device is {row.device}, its numeric platform is on {kind!r}"


CHECKS: Mapping[str, tuple[Check, str]] = {
    "configuration": (check_configuration, "valid; ids and columns recomputed"),
    "code": (check_code, "commit of this project, sources unchanged"),
    "data": (check_data, "known revision, no test image in training"),
    "partition": (check_partition, "made again, hash equal"),
    "rounds": (check_rounds, "complete, possible, end in the row's numbers"),
    "ledger": (check_ledger, "parameters and bytes recomputed"),
    "metrics": (check_metrics, "ranges and identities"),
    "environment": (check_environment, "times, platform and versions agree"),
}
"""Checks of a row by name, each with a few words for tables."""

"""Checks of a row and its curve that need no run: ids, partition, ledger, sums, environment.

Numbers that agree with each other pass. The real check is `fedbench verify --rerun`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedbench.bench.board.bundle import Entry
from fedbench.bench.board.copies import Copies
from fedbench.bench.board.expected import Expected, data_of, expected
from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.method import ACTIVATIONS
from fedbench.bench.results.leaderboard.studies import best_trial, scored_trials
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.code import changed_code
from fedbench.bench.runs.execute import derived
from fedbench.bench.runs.guarantees import needed_one_by_one
from fedbench.bench.runs.run import canonical
from fedbench.bench.system.errors import FedbenchError, StoreError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.numerics import Platform
from fedbench.bench.training.ledger import BYTES_PER_NUMBER, Flow, Ledger
from fedbench.bench.training.steps import partition_of

FILES, COPIES = "files", "copies"
_EXACT = 1e-9
"""Largest error of sums in double precision here."""
_FIRST, _CLOCK = datetime(2026, 11, 20, tzinfo=UTC), timedelta(days=1)
"""Before the first lines of this project, and by how much two clocks may differ."""


class Unchecked(Exception):  # noqa: N818
    """Raised by a check that cannot be made here; the text says why."""


@dataclass(frozen=True)
class Problem:
    """A contradiction that a check found in a row, or in the bundle if `row_id` is empty."""

    row_id: str
    check: str
    problem: str


@dataclass(frozen=True)
class CheckCount:
    """Rows that passed or failed a check, and for how many it could not be made, with a reason."""

    check: str
    about: str
    passed: int
    failed: int
    unchecked: int
    reason: str


@dataclass(frozen=True)
class Claim:
    """A row to check, with its curve, and what is known here.

    Attributes:
        row: the row.
        points: of its curve: a dict of columns for each round.
        config: its configuration, written in full.
        dataset: of its data revision, or a blank one; None if the revision is not known.
        expected: what follows from both; None without a data set.
        study: description and best trial of the study that it names; None if that is not here.
    """

    row: Row
    points: Sequence[Mapping[str, Any]]
    config: RunConfig
    dataset: Dataset | None
    expected: Expected | None
    study: tuple[Mapping[str, Any], Mapping[str, Any] | None] | None

    def need(self) -> tuple[Dataset, Expected]:
        """Return its data set, and what follows from its shape.

        Raises:
            Unchecked: the data revision is not known here.
        """
        if self.dataset is None or self.expected is None:
            raise Unchecked("its data revision is not known here")
        return self.dataset, self.expected


def check_configuration(claim: Claim) -> Iterator[str]:
    """Ids and columns follow from the configuration, settings from the study."""
    row, given = claim.row, claim.row.config
    if (given.spec, given.method) != (claim.config.spec, claim.config.method):
        yield f"method fields {given.method} differ from all fields of {claim.config.spec!r}"
    if canonical_json(json.loads(row.config_json)) != row.config_json:
        yield "config_json is not canonical JSON"
    for name, value in derived(given, row.dataset_revision).items():
        if getattr(row, name) != value:
            yield f"{name} is {getattr(row, name)}, but its configuration gives {value}"
    if row.status == "error":
        yield f"it failed ({row.error}): there is no result"
    if row.tuned != (row.study_id is not None) or (row.selection == "label-free" and not row.tuned):
        yield f"selection is {row.selection}, tuned is {row.tuned}, but study_id is {row.study_id}"
    if claim.study is None:
        return
    study, best = claim.study
    if best is None or study.get("spec") != row.method:
        yield f"study {row.study_id} has no best trial of {row.method}"
        return
    settings = flatten(json.loads(row.config_json)) | json.loads(row.scaled_json or "{}")
    for name, value in best["params"].items():
        if settings.get(name) != value:
            yield f"{name} is {settings.get(name)}, but study {row.study_id} found {value}"


def check_code(claim: Claim) -> Iterator[str]:
    """The code is a commit without changes; that of other packages is as installed here."""
    if (claim.row.git_sha or "").endswith("-dirty"):
        yield f"git_sha is {claim.row.git_sha}: built from uncommitted changes"
    if changed := changed_code(claim.row.config.code, claim.config.code):
        raise Unchecked(f"the code of {', '.join(changed)} is not what is installed here")


def check_data(claim: Claim) -> Iterator[str]:
    """The data revision is known, and by this name."""
    if claim.dataset is None:
        yield (
            f"data revision {claim.row.dataset_revision[:12]} is not known; get the data and name"
            " their cache with --data-dir"
        )
    elif claim.row.dataset != claim.dataset.name:
        yield f"dataset is {claim.row.dataset!r}, but the revision is of {claim.dataset.name!r}"


def check_partition(claim: Claim) -> Iterator[str]:
    """The data are partitioned again, with an equal hash."""
    if claim.dataset is None or claim.dataset.path == Path():
        raise Unchecked("its data are not in the cache here")
    made = partition_of(claim.dataset, claim.config).hash
    if made != claim.row.partition_hash:
        yield f"partition_hash is {claim.row.partition_hash}, but its configuration gives {made}"


def check_rounds(claim: Claim) -> Iterator[str]:
    """The curve has every round, possible cohorts, and ends in the row's numbers."""
    row, points, config = claim.row, claim.points, claim.config
    _, expected = claim.need()
    count, done, total = len(points), row.rounds_done, expected.num_rounds
    whole = row.status == "ok"
    if [point["round_index"] for point in points] != list(range(count)) or not (
        count == done == total if whole else count <= total and abs(count - (done or 0)) <= 1
    ):
        yield f"its curve has {count} rounds, the row {done}, its configuration {total}"
        return
    for point in points:
        drawn = expected.plan(point["round_index"]).cohort == "sampled"
        limited = drawn and config.privacy.clip is None
        most = config.cohort_size if limited else config.data.num_clients
        if not 0 <= point["idle_clients"] <= point["cohort_size"] <= most:
            yield (
                f"round {point['round_index'] + 1}: {point['idle_clients']} idle of"
                f" {point['cohort_size']} clients, of which there are at most {most}"
            )
            return
    if not points or not whole:
        return
    metrics, last = row.metrics, points[-1]
    ends = {"final_loss": last["loss"], "idle_clients": sum(p["idle_clients"] for p in points)}
    if not expected.setup.evaluate_on_clients:
        names = ("std_ratio", "effective_rank", "collapsed", "projection_std_ratio")
        ends |= {name: last[name] for name in names}
    for name, value in ends.items():
        if metrics.get(name) != value:
            yield f"{name} is {metrics.get(name)}, but its curve ends in {value}"


def check_ledger(claim: Claim) -> Iterator[str]:
    """Parameters, traffic of every round and tensor group, their sums, and what they reveal."""
    row, (_, expected) = claim.row, claim.need()
    if row.num_parameters != expected.num_parameters:
        yield f"num_parameters is {row.num_parameters}, its net has {expected.num_parameters:,}"
    if row.secure_sum not in (None, secure := not needed_one_by_one(expected.setup.method)):
        yield f"secure_sum is {row.secure_sum}, its method's is {secure}"
    budgets = any(extra.budget is not None for extra in expected.needs.extras.values())
    if row.epsilon is not None and claim.config.privacy.clip is None and not budgets:
        yield f"epsilon is {row.epsilon}, but nothing in its configuration is private"
    total = Ledger()
    for point in claim.points:
        sent = _flows(point)
        total.merge(sent)
        if problem := next(_round_traffic(point, sent, expected), None):
            yield f"round {point['round_index'] + 1}: {problem}"
            return
    trained = row.status == "ok" and any(point["num_steps"] for point in claim.points)
    if trained and ACTIVATIONS in expected.needs.extras.keys() - total.flows["up"].keys():
        yield f"no {ACTIVATIONS!r} went up in any round, which its method sends"
    said = Ledger.from_dict(json.loads(row.traffic_json or "{}"))
    # A run that diverged also sent messages of a round without a record.
    if row.status == "ok" and said.flows != total.flows:
        yield "traffic_json is not the sum over its rounds"
    sums = {
        "bytes_up": said.bytes_up,
        "bytes_down": said.bytes_down,
        "revealing_messages": said.revealing,
        "smallest_group": said.smallest,
    }
    for name, value in sums.items():
        if getattr(row, name) != value:
            yield f"{name} is {getattr(row, name)}, its messages have {value}"


def _flows(point: Mapping[str, Any]) -> Ledger:
    """Return the traffic of a round, from columns such as `traffic.up.encoder.bytes`."""
    found: dict[str, dict[str, dict[str, Any]]] = {"up": {}, "down": {}}
    for name, value in point.items():
        if name.startswith("traffic."):
            _, direction, rest = name.split(".", 2)
            group, _, field = rest.rpartition(".")
            found[direction].setdefault(group, {})[field] = value
    for groups in found.values():
        for group in [g for g, flow in groups.items() if flow["messages"] is None]:
            del groups[group]  # of other rounds
    return Ledger.from_dict(found)


def _round_traffic(point: Mapping[str, Any], sent: Ledger, expected: Expected) -> Iterator[str]:
    """Yield what is wrong with the messages of one round."""
    cohort = point["cohort_size"]
    for direction, clients in (("up", cohort - point["idle_clients"]), ("down", cohort)):
        flows, tensors = sent.flows[direction], expected.flows.flows[direction]
        for group, one in tensors.items():
            for name in ("messages", "numbers", "bytes", "revealing"):
                got, due = getattr(flows.get(group, Flow()), name), getattr(one, name) * clients
                if got != due:
                    yield f"{name} {direction} of {group!r} are {got:,}, its tensors give {due:,}"
        for group in flows.keys() - tensors.keys():
            flow, extra = flows[group], expected.needs.extras.get(group)
            remote = group == ACTIVATIONS and expected.activations
            if not remote and (extra is None or direction == "down"):
                yield f"{group!r} goes {direction}, which its method does not send"
            visits = cohort * (2 if expected.needs.pre_round else 1)
            if not 0 <= flow.messages <= visits and not remote:
                yield f"{flow.messages} messages {group!r} from {cohort} clients"
            if not 0 <= flow.numbers <= flow.bytes <= 2 * BYTES_PER_NUMBER * flow.numbers:
                yield f"{flow.numbers:,} numbers {group!r} in {flow.bytes:,} bytes"
            single = remote or (extra is not None and extra.per_sample)
            few = flow.smallest is not None and flow.smallest < 2
            if (flow.revealing > 0) != few or (single and flow.revealing != flow.messages):
                yield f"{flow.revealing} of {flow.messages} messages {group!r} count as revealing"
        total, said = sum(flow.bytes for flow in flows.values()), point[f"bytes_{direction}"]
        if said != total:
            yield f"bytes_{direction} is {said}, its messages have {total}"


_ELSEWHERE = re.compile(r"_(local|train)_")  # accuracies on other images than the test split
_LARGEST = 1e15
_RANGES: Mapping[str, tuple[float, float]] = {
    r"\w+_acc|rho|collapsed|clusterability": (0, 1),
    r"align|self_clustering": (-1, 1),
    r"effective_rank|rankme(_centred)?|stable_rank|nesum|participation_ratio|lidar": (0, math.inf),
    r"(projection_)?std_ratio": (0, 1.5),
    r".*": (-_LARGEST, _LARGEST),
}
"""Least and largest value of a metric, by the first pattern that fits its name; inf stands for the
length of feature vectors and projections. Unit vectors have std_ratio <= 1, up to n / (n - 1)."""


@lru_cache(maxsize=4096)
def _range(name: str) -> tuple[float, float]:
    return next(limits for p, limits in _RANGES.items() if re.fullmatch(p, name))


def check_metrics(claim: Claim) -> Iterator[str]:
    """Metrics are in their ranges, sums agree, accuracies are whole test images."""
    claim.need()
    if claim.row.status != "ok":
        return
    metrics, start = claim.row.metrics, "untrained_"
    before = {n.removeprefix(start): v for n, v in metrics.items() if n.startswith(start)}
    after = {n: v for n, v in metrics.items() if not n.startswith(start)}
    for prefix, values in (("", after), (start, before)):
        if values:
            yield from (f"{prefix}{text}" for text in _identities(values, claim))
            yield from (f"{prefix}{text}" for text in _out_of_range(values, claim))
    for point in claim.points:
        measured = {n[8:]: v for n, v in point.items() if n[:8] == "metrics." and v is not None}
        if text := next(_out_of_range(measured, claim), None):
            yield f"round {point['round_index'] + 1}: {text}"
            return


def _out_of_range(values: Mapping[str, float], claim: Claim) -> Iterator[str]:
    """Yield metrics that no encoder has; noise on sums takes some scores anywhere."""
    noisy = claim.config.evaluation.objective_noise is not None
    _, expected = claim.need()
    for name, value in values.items():
        low, high = _range(".*" if noisy and not is_accuracy(name) else name)
        high = expected.dim if high == math.inf else high
        if not low - 1e-6 <= value <= high + 1e-6:
            yield f"{name} is {value}, outside {low:g} to {high:g}"


def _identities(values: Mapping[str, float], claim: Claim) -> Iterator[str]:
    """Yield contradictions between metrics of one encoder."""
    evaluation, (dataset, expected) = claim.config.evaluation, claim.need()
    num_test = len(dataset.test_labels)
    align, unif, objective = (values.get(name) for name in ("align", "unif", "objective"))
    if align is None or unif is None or objective is None:
        yield "objective, align or unif is missing"
        return
    if abs(unif) > (1 + _EXACT) / evaluation.objective_temperature:
        yield f"unif is {unif}, above 1 / temperature"
    due = {"objective": align + evaluation.objective_weight * unif, "delta_views": 1 - align}
    one_encoder = not expected.setup.evaluate_on_clients
    if one_encoder and values.get("rho"):  # else of means over clients
        due["sep"] = 1 - due["delta_views"] / values["rho"]
    for name, value in due.items():
        error = 1e-6 if name == "sep" else _EXACT
        if not math.isclose(values.get(name, value), value, rel_tol=error, abs_tol=error):
            yield f"{name} is {values[name]}, but other metrics give {value}"
    for name, value in values.items():
        images = value * num_test
        on_test = one_encoder and is_accuracy(name) and not _ELSEWHERE.search(name)
        if on_test and abs(images - round(images)) > 1e-6 * num_test:
            yield f"{name} is {value}, no share of {num_test:,} test images"


def check_environment(claim: Claim) -> Iterator[str]:
    """Times are in order, and the platform's name follows from its record."""
    row = claim.row
    if not _FIRST <= row.started_at <= row.finished_at <= datetime.now(UTC) + _CLOCK:
        yield f"it ran from {row.started_at:%F %T} to {row.finished_at:%F %T}"
    if row.resumes == 0 and row.measured_from is None:
        span = (row.finished_at - row.started_at).total_seconds()
        wall, train = row.wall_seconds or 0.0, row.train_seconds or 0.0
        rounds = sum(point["seconds"] for point in claim.points) if claim.points else train
        if not max(train, rounds) - 1 <= wall <= span + 1:
            yield f"wall_seconds is {wall:.0f}: {rounds:.0f} s of rounds, {span:.0f} s in all"
        if train > rounds * 1.05 + 1:
            yield f"train_seconds is {train:.0f}, but its rounds took {rounds:.0f} s"
    records = json.loads(row.platform_json or "[]")
    names = [str(Platform(**{k: v for k, v in r.items() if k != "name"})) for r in records]
    if not names or row.platform != ", then ".join(names) or names != [r["name"] for r in records]:
        yield f"platform is {(row.platform or 'missing')[:80]!r}, but its record gives {names}"


CHECKS: Mapping[str, Callable[[Claim], Iterator[str]]] = {
    "configuration": check_configuration,
    "code": check_code,
    "data": check_data,
    "partition": check_partition,
    "rounds": check_rounds,
    "ledger": check_ledger,
    "metrics": check_metrics,
    "environment": check_environment,
}
"""Each yields a line for each contradiction, and raises `Unchecked` if it cannot be made."""
_ABOUT: Mapping[str, str | None] = {
    FILES: "The manifest lists every file with its SHA-256, and values fit the schema.",
    **{name: check.__doc__ for name, check in CHECKS.items()},
    COPIES: "No numbers of another seed, and equal metrics before training of equal weights.",
}


class Checker:
    """Makes the checks that need no run.

    Args:
        board: rows that are there already, to find copies among.
        data_dir: cache of data sets; None = the default one.
        studies: store of the studies that rows name; None = there are none.

    Attributes:
        problems: contradictions.
        notes: remarks that are no contradiction.
    """

    def __init__(
        self,
        board: Sequence[Entry] = (),
        data_dir: Path | None = None,
        studies: Store | None = None,
    ) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._copies, self._studies = Copies(board), studies
        self._known_studies = () if studies is None else frozenset(studies.studies())
        self._data = lru_cache(maxsize=None)(lambda revision: data_of(revision, data_dir))
        self._counts = {
            name: CheckCount(name, str(about), 0, 0, 0, "") for name, about in _ABOUT.items()
        }

    def add(self, row_id: str, check: str, problems: Sequence[str]) -> None:
        """Count one check of one row, or of the bundle if `row_id` is empty."""
        self._count(check, failed=1) if problems else self._count(check, passed=1)
        self.problems += [Problem(row_id, check, problem) for problem in problems]

    def __call__(self, entry: Entry) -> None:
        """Check one row and its curve, and remember it for those that follow."""
        row = entry.row
        self.add(row.row_id, FILES, [])
        if row.study_id is not None and row.study_id not in self._known_studies:
            note = f"run {row.row_id} is said to be tuned: its study {row.study_id} is not here"
            self.notes.append(note)
        try:
            claim = self._claim(entry)
        except FedbenchError as err:
            self.add(row.row_id, "configuration", [str(err)])
            return
        for name, check in CHECKS.items():
            try:
                found = list(check(claim))
            except Unchecked as why:
                self._count(name, unchecked=1, reason=str(why))
                continue
            except (FedbenchError, TypeError, ValueError, KeyError, AttributeError) as err:
                found = [" ".join(f"a value of another kind than fedbench writes: {err}".split())]
            self.add(row.row_id, name, found)
        self.add(row.row_id, COPIES, list(self._copies.problems(entry)))
        self._copies.add(entry)

    @property
    def outcome(self) -> dict[str, Any]:
        """Counts of each check, contradictions and remarks so far."""
        found = {"problems": tuple(self.problems), "notes": tuple(self.notes)}
        return {"checks": tuple(self._counts.values()), **found}

    def _count(self, check: str, reason: str = "", **more: int) -> None:
        count = self._counts[check]
        sums = {name: getattr(count, name) + number for name, number in more.items()}
        self._counts[check] = replace(count, reason=count.reason or reason, **sums)

    def _claim(self, entry: Entry) -> Claim:
        """Return a row with what is known here.

        Raises:
            FedbenchError: for another benchmark version, or a configuration that is not valid.
        """
        row, study = entry.row, None
        if row.benchmark_version != BENCHMARK_VERSION:
            raise StoreError(
                f"benchmark_version is {row.benchmark_version}, this fedbench checks"
                f" {BENCHMARK_VERSION}; install fedbench {row.package_version}"
            )
        config, dataset = canonical(row.config), self._data(row.dataset_revision)
        follows = None if dataset is None else expected(config, dataset)
        if self._studies is not None and row.study_id in self._known_studies:
            name = str(row.study_id)
            study = self._studies.study(name) or {}, best_trial(scored_trials(self._studies, name))
        return Claim(row, entry.points, config, dataset, follows, study)

"""Checks of a row and its curve that need no run: ids, partition, ledger, sums, environment.

Numbers that agree with each other pass. The real check is `fedbench verify --rerun`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.bench.board.bundle import Run
from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.datasets import Dataset, cached_dataset
from fedbench.bench.data.known import REVISIONS, SUBSETS
from fedbench.bench.data.partition import Partition
from fedbench.bench.data.sources.base import SOURCES
from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.execution.compare import ELSEWHERE
from fedbench.bench.execution.execute import derived, plugin_packages
from fedbench.bench.execution.guarantees import needed_one_by_one
from fedbench.bench.experiment.code import changed_code, missing_code
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import canonical
from fedbench.bench.method import ACTIVATIONS, registry
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import ConfigError, FedbenchError, StoreError
from fedbench.bench.system.numerics import Platform
from fedbench.bench.training.aggregate import declared_aggregator
from fedbench.bench.training.ledger import Flow, Ledger
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import BUFFERED


def data_of(revision: str, data_dir: Path | None) -> Dataset | None:
    """Return the data set of a revision: from a cache, else `blank` if it is known, else None."""
    if (found := cached_dataset(revision, data_dir)) is not None:
        return found
    name, *part = SUBSETS.get(revision, (REVISIONS.get(revision, ""),))
    size = SOURCES[name].size if name in SOURCES else None
    if size is None:
        return None
    num_classes, image_shape, *numbers = size
    return blank(name, image_shape, num_classes, *(part or numbers))


def blank(
    name: str, image_shape: tuple[int, int, int], num_classes: int, num_train: int, num_test: int
) -> Dataset:
    """Return a data set of black images, which take no memory; it has no path."""
    train, test = (
        np.broadcast_to(np.zeros(1, np.uint8), (count, *image_shape))
        for count in (num_train, num_test)
    )
    labels, test_labels = (
        np.arange(count, dtype=np.int64) % num_classes for count in (num_train, num_test)
    )
    names = tuple(map(str, range(num_classes)))
    return Dataset(name, "", "", train, labels, test, test_labels, names, Path())


@dataclass(frozen=True)
class Expected:
    """Facts that every honest run of a configuration has; they follow from shapes alone."""

    setup: Setup  # the run on one blank image a client
    num_parameters: int  # of its net
    activations: bool  # True if activations cross between clients and server
    flows: Ledger  # messages of one client in a round in which it makes a step


def expected(config: RunConfig, dataset: Dataset) -> Expected:
    """Derive what follows from a configuration on data of these shapes."""
    if config.data.num_clients > (count := len(dataset.train_labels)):
        raise ConfigError(f"data.num_clients is above the {count:,} training images")
    # As text, since a configuration has no hash: rows that differ in nothing else share a net.
    plain = config.model_copy(update={"seed": 0}).model_dump_json(exclude=_WITHOUT)
    return _expected(plain, dataset.image_shape, dataset.num_classes)


_WITHOUT: Any = {"evaluation": True, "privacy": True, "model": {"weights", "weights_sha256"}}
"""Fields that change no shape; the file of `weights` need not be here."""


@lru_cache(maxsize=64)
def _expected(plain: str, image_shape: tuple[int, int, int], num_classes: int) -> Expected:
    config = RunConfig.model_validate_json(plain)
    count = config.data.num_clients
    offsets = np.arange(count + 1, dtype=np.int64)
    setup = Setup.of(
        config,
        blank("blank", image_shape, num_classes, count, count),
        Partition("iid", 1.0, 0, count, num_classes, offsets[:-1], offsets),
        registry.create(config.spec, config.method),
    )
    with torch.device("meta"):  # shapes without weights: a stranger may ask for any width
        net = setup.make_net()
    layout, needs = setup.layout(net), setup.needs
    single = declared_aggregator(setup.method, config.server).single_uploads
    flows = Ledger.of_client(layout, needs.extras, single=single)
    flows.merge(Ledger.resent(layout, needs.pre_round))
    parameters = sum(p.numel() for p in net.parameters())
    return Expected(setup, parameters, bool(net.remote), flows)


FILES, COPIES = "files", "copies"
_EXACT = 1e-9
"""Largest error of sums in double precision here."""


class Unchecked(Exception):  # noqa: N818
    """Raised by a check that cannot be made here; the text says why."""


@dataclass(frozen=True)
class Problem:
    """A contradiction that a check found in a run, or in the bundle if `run_id` is empty."""

    run_id: str
    check: str
    problem: str


@dataclass
class CheckCount:
    """Rows that passed or failed a check, and for how many it could not be made, with reasons."""

    check: str
    about: str
    passed: int = 0
    failed: int = 0
    unchecked: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Claim:
    """A row to check, with its curve, and what is known here."""

    row: Row
    points: Sequence[Mapping[str, Any]]  # of its curve: a dict of columns for each round
    config: RunConfig  # its configuration, written in full
    dataset: Dataset  # of its data revision, blank where only its shape is known
    expected: Expected


def check_configuration(claim: Claim) -> Iterator[str]:
    """Ids and columns follow from the configuration."""
    row, given = claim.row, claim.row.config
    fields, known = flatten(given.method), flatten(claim.config.method)
    # A row that is older than a field has its default.
    if given.spec != claim.config.spec or not fields.items() <= known.items():
        yield f"method fields {given.method} are not among those of {claim.config.spec!r}"
    for name, value in derived(given, row.dataset_revision).items():
        if getattr(row, name) != value:
            yield f"{name} is {getattr(row, name)}, but its configuration gives {value}"
    # A name such as hub:FOLDER is only a label.
    if row.dataset != (name := claim.dataset.name) and not (":" in name and ":" in row.dataset):
        yield f"dataset is {row.dataset!r}, but the revision is of {name!r}"
    if row.status == "error":
        yield f"it failed ({row.error}): there is no result"
    if row.tuned != (row.study_id is not None) or (row.selection == "label-free" and not row.tuned):
        yield f"selection is {row.selection}, tuned is {row.tuned}, but study_id is {row.study_id}"


def check_code(claim: Claim) -> Iterator[str]:
    """The code is a commit without changes; that of other packages is as installed here."""
    if (claim.row.git_sha or "").endswith("-dirty"):
        yield f"git_sha is {claim.row.git_sha}: built from uncommitted changes"
    if changed := changed_code(claim.row.config.code, claim.config.code):
        raise Unchecked(f"the code of {', '.join(changed)} is not what is installed here")


def check_partition(claim: Claim) -> Iterator[str]:
    """The data are partitioned again, with an equal hash."""
    if claim.dataset.path == Path():
        raise Unchecked("its data are not in the cache here")
    made = Experiment(claim.config).on(claim.dataset).partition.hash
    if made != claim.row.partition_hash:
        yield f"partition_hash is {claim.row.partition_hash}, but its configuration gives {made}"


def check_rounds(claim: Claim) -> Iterator[str]:
    """The curve has every round, possible cohorts, and ends in the row's numbers."""
    row, points, config, expected = claim.row, claim.points, claim.config, claim.expected
    count, done, whole = len(points), row.rounds_done, row.status == "ok"
    federation = config.federation
    total = federation.num_rounds + expected.setup.needs.preparatory_rounds
    if [point["round_index"] for point in points] != list(range(count)) or not (
        count == done == total if whole else count <= total and abs(count - (done or 0)) <= 1
    ):
        yield f"its curve has {count} rounds, the row {done}, its configuration {total}"
        return
    for index, point in enumerate(points):
        plan = expected.setup.plan(index)
        limited = plan.cohort == "sampled" and config.privacy.clip is None
        cohort = federation.buffer_size if federation.mode == BUFFERED else config.cohort_size
        most = cohort if limited else config.data.num_clients
        idle, cohort = point["idle_clients"], point["cohort_size"]
        if not 0 <= idle <= cohort <= most:
            yield f"round {index + 1}: {idle} idle of {cohort} clients, of which at most {most}"
            return
    if not points or not whole:
        return
    last = points[-1]
    ends = {"final_loss": last["loss"], "idle_clients": sum(p["idle_clients"] for p in points)}
    if not expected.setup.evaluate_on_clients:
        names = ("std_ratio", "effective_rank", "collapsed", "projection_std_ratio")
        ends |= {name: last[name] for name in names}
    for name, value in ends.items():
        if row.metrics.get(name) != value:
            yield f"{name} is {row.metrics.get(name)}, but its curve ends in {value}"


def check_ledger(claim: Claim) -> Iterator[str]:
    """Parameters, traffic of every round and tensor group, their sums, and what they reveal."""
    row, expected, needs = claim.row, claim.expected, claim.expected.setup.needs
    if row.num_parameters != expected.num_parameters:
        yield f"num_parameters is {row.num_parameters}, its net has {expected.num_parameters:,}"
    if row.secure_sum not in (
        None,
        secure := not needed_one_by_one(expected.setup.method, claim.config.server),
    ):
        yield f"secure_sum is {row.secure_sum}, its method's is {secure}"
    budgets = any(extra.budget is not None for extra in needs.extras.values())
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
    if trained and ACTIVATIONS in needs.extras.keys() - total.flows["up"].keys():
        yield f"no {ACTIVATIONS!r} went up in any round, which its method sends"
    said = Ledger.from_dict(row.traffic)
    # A run that diverged also sent messages of a round without a record.
    if row.status == "ok" and said.flows != total.flows:
        yield "traffic is not the sum over its rounds"
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
    sent = {  # other groups are of other rounds
        direction: {g: flow for g, flow in groups.items() if flow["messages"] is not None}
        for direction, groups in found.items()
    }
    return Ledger.from_dict(sent)


def _round_traffic(point: Mapping[str, Any], sent: Ledger, expected: Expected) -> Iterator[str]:
    """Yield what is wrong with the messages of one round."""
    cohort, extras = point["cohort_size"], expected.setup.needs.extras
    asked = point.get("simulated.asked")  # who is late or drops out has received the model
    received = cohort if asked is None else int(asked)
    for direction, clients in (("up", cohort - point["idle_clients"]), ("down", received)):
        flows, tensors = sent.flows[direction], expected.flows.flows[direction]
        for group, one in tensors.items():
            for name in ("messages", "numbers", "bytes", "revealing", "single"):
                got, due = getattr(flows.get(group, Flow()), name), getattr(one, name) * clients
                if got != due:
                    yield f"{name} {direction} of {group!r} are {got:,}, its tensors give {due:,}"
        for group in flows.keys() - tensors.keys():
            flow, remote = flows[group], group == ACTIVATIONS and expected.activations
            if not remote and (direction == "down" or group not in extras):
                yield f"{group!r} goes {direction}, which its method does not send"
            elif (remote or extras[group].per_sample) and flow.revealing != flow.messages:
                yield f"{flow.revealing} of {flow.messages} messages {group!r} count as revealing"
        total, said = sum(flow.bytes for flow in flows.values()), point[f"bytes_{direction}"]
        if said != total:
            yield f"bytes_{direction} is {said}, its messages have {total}"


def check_metrics(claim: Claim) -> Iterator[str]:
    """Accuracies are shares of the test images, the objective is the sum of its parts."""
    if claim.row.status != "ok":
        return
    one_encoder = not claim.expected.setup.evaluate_on_clients
    num_test = len(claim.dataset.test_labels)
    measured = [("", claim.row.metrics)]
    for point in claim.points:
        values = {n[8:]: v for n, v in point.items() if n[:8] == "metrics." and v is not None}
        measured.append((f"round {point['round_index'] + 1}: ", values))
    for place, values in measured:
        for name in filter(is_accuracy, values):
            value, of_test_images = values[name], one_encoder and not ELSEWHERE.search(name)
            if not 0 <= value <= 1:
                yield f"{place}{name} is {value}, outside 0 to 1"
            elif of_test_images and abs(round(value * num_test) / num_test - value) > 1e-6:
                yield f"{place}{name} is {value}, no share of {num_test:,} test images"
    weight = claim.config.evaluation.objective_weight
    for start in ("", "untrained_"):
        names = (f"{start}objective", f"{start}align", f"{start}unif")
        objective, align, unif = map(claim.row.metrics.get, names)
        if objective is None or align is None or unif is None:
            if not start:
                yield "objective, align or unif is missing"
        elif not math.isclose(objective, align + weight * unif, rel_tol=_EXACT, abs_tol=_EXACT):
            yield f"{names[0]} is {objective}, but alignment and uniformity give another"


def check_environment(claim: Claim) -> Iterator[str]:
    """The platform's name follows from its record."""
    row = claim.row
    records = row.platforms
    names = [str(Platform.from_dict(record)) for record in records]
    if not names or row.platform != ", then ".join(names) or names != [r["name"] for r in records]:
        yield f"platform is {(row.platform or 'missing')[:80]!r}, but its record gives {names}"


CHECKS: Mapping[str, Callable[[Claim], Iterator[str]]] = {
    "configuration": check_configuration,
    "code": check_code,
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
    COPIES: "Runs that the board has too have the same bits there, or another platform.",
}
_UNREADABLE = (
    FedbenchError, RuntimeError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError,
)  # fmt: skip
"""Raised for values of another kind than fedbench writes, and for nets that cannot be built."""


class Checker:
    """Makes the checks that need no run.

    `other_code` are the rows whose code is not what is installed here: to run them again would
    tell nothing.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        self.problems: list[Problem] = []
        self.other_code: set[str] = set()
        self.counts = {name: CheckCount(name, str(about)) for name, about in _ABOUT.items()}
        self._data = lru_cache(maxsize=None)(partial(data_of, data_dir=data_dir))

    def add(self, run_id: str, check: str, problems: Sequence[str]) -> None:
        """Count one check of one row, or of the bundle if `run_id` is empty."""
        self.counts[check].failed += bool(problems)
        self.counts[check].passed += not problems
        self.problems += [Problem(run_id, check, problem) for problem in problems]

    def __call__(self, run: Run) -> None:
        """Check one row and its curve."""
        row_id = run.row.row_id
        self.add(row_id, FILES, [])
        try:
            claim = self._claim(run)
        except Unchecked as why:
            self.other_code.add(row_id)
            for name in CHECKS:
                self._leave_out(name, why)
            return
        except _UNREADABLE as err:
            self.add(row_id, "configuration", [" ".join(str(err).split())])
            return
        for name, check in CHECKS.items():
            try:
                found = list(check(claim))
            except Unchecked as why:
                if check is check_code:
                    self.other_code.add(row_id)
                self._leave_out(name, why)
                continue
            except _UNREADABLE as err:
                found = [" ".join(f"a value of another kind than fedbench writes: {err}".split())]
            self.add(row_id, name, found)

    def _leave_out(self, check: str, why: Unchecked) -> None:
        count = self.counts[check]
        count.unchecked += 1
        if str(why) not in count.reason:
            count.reason = "; ".join(filter(None, (count.reason, str(why))))

    def _claim(self, run: Run) -> Claim:
        """Return a row with what is known here."""
        row = run.row
        if row.benchmark_version != BENCHMARK_VERSION:
            raise StoreError(
                f"benchmark_version is {row.benchmark_version}, this fedbench checks"
                f" {BENCHMARK_VERSION}; install fedbench {row.package_version}"
            )
        if missing := missing_code(row.code):
            brought = [f"{name} {version}" for name, version in plugin_packages(row).items()]
            needed = ", ".join(brought) or "code that no package brought"
            raise Unchecked(f"{', '.join(missing)} needs {needed}, which is not installed here")
        config, dataset = canonical(row.config), self._data(row.dataset_revision)
        if dataset is None:
            known = f"data revision {row.dataset_revision[:12]} is not known"
            raise StoreError(f"{known}; get the data and name their cache with --data-dir")
        return Claim(row, run.points, config, dataset, expected(config, dataset))

"""Who takes part in a round, and how long a fleet of simulated devices takes for it.

Times follow from the configuration alone: the bytes of the model, the images of a client and the
FLOP of the encoder, over the numbers of its device. So whoever asks, at whatever round, in whatever
process, finds the same rounds, and nothing of the clock has to be kept in a checkpoint.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.method import Labels, Method, Net, RoundPlan, writes
from fedbench.bench.method.aggregator import Mean
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.training.aggregate import declared_aggregator
from fedbench.bench.training.client import Task
from fedbench.bench.training.devices import UNIFORM, Fleet, Floats, fleet_of
from fedbench.bench.training.flop import counted
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Ids, Setup, num_batches

BUFFERED = "buffered"
_PASSES = 3
"""Forward passes that a training step costs: the backward pass takes two."""

_ROUNDING = 1e-9  # 50 * 1.1 is 55.00000000000001, which would ask 56 clients
_OF_DEVICES = {
    "federation": ("deadline", "over_selection", "partial_work", "mode"),
    "devices": ("failure", "correlation"),
}
"""Sections and fields that say nothing without devices."""


@dataclass(frozen=True)
class Round:
    """A round, or a server step of a buffered run.

    Attributes:
        tasks: the clients whose uploads count, by version and client id.
        asked: the clients that received the model in it, ascending.
        late, dropped: how many of them came too late, or dropped out, and so send nothing.
        seconds: simulated; None without devices.
        alive: server steps whose model a client is still at work on, the next one included.
    """

    tasks: tuple[Task, ...]
    asked: tuple[int, ...]
    late: int = 0
    dropped: int = 0
    seconds: float | None = None
    alive: frozenset[int] = frozenset()


class Timeline:
    """The rounds of a run.

    Args:
        setup: the run.
        net: makes its net, to count the FLOP of the encoder; called where there are devices.
        layout: of the net.

    Attributes:
        per_client, resent: what a client exchanges in a round, and is sent once more before one;
            extras are not among it and take no time.

    Raises:
        ConfigError: if nobody would meet the deadline, or nobody be online when a round begins.
    """

    def __init__(self, setup: Setup, net: Callable[[], Net], layout: VectorLayout) -> None:
        self._setup, self._config = setup, setup.config
        single = declared_aggregator(setup.method, setup.config.server).single_uploads
        self.per_client = Ledger.of_client(layout, setup.needs.extras, single=single)
        self.resent = Ledger.resent(layout, setup.needs.pre_round)
        self.fleet = fleet_of(setup.config, setup.partition, setup.dataset.train_labels)
        if self.fleet is not None:
            self._cost(self.fleet, image_flop(setup, net()))
            self._check(self.fleet)

    def _cost(self, fleet: Fleet, flop: float) -> None:
        """Note of each client its local steps of an epoch, and its times [s], (K,) each.

        They are those to receive the model, to send it, and, in the mean, of a local step.
        """
        setup, batch = self._setup, self._config.client.batch_size
        held, exchanged = setup.partition.sizes, (self.per_client, self.resent)
        if setup.needs.labels is Labels.ONLY:
            owners = np.repeat(np.arange(len(held)), held)
            seen = setup.labels[setup.partition.indices] != HIDDEN
            held = np.bincount(owners[seen], minlength=len(held))
        self._steps = num_batches(held, setup.config, setup.needs)
        epoch = np.minimum(held, self._steps * batch) * flop / fleet.flop_per_s
        self._step: Floats = epoch / np.maximum(self._steps, 1)
        self._down = sum(each.bytes_down for each in exchanged) / (fleet.down_mb_per_s * 1e6)
        self._up = sum(each.bytes_up for each in exchanged) / (fleet.up_mb_per_s * 1e6)

    def _fixed(self, clients: Ids, sends: npt.NDArray[np.bool_]) -> Floats:
        """Return the seconds of some clients without their steps; not all of them send."""
        return self._down[clients] + self._up[clients] * sends

    def rounds(self, start: int = 0) -> Iterator[Round]:
        """Yield the rounds from `start` on, preparatory ones included, without end."""
        if self.fleet is None:
            return self._plain(start)
        buffered = self._config.federation.mode == BUFFERED
        made = self._buffered(self.fleet) if buffered else self._synchronous(self.fleet)
        return itertools.islice(made, start, None)

    def _plain(self, start: int) -> Iterator[Round]:
        for index in itertools.count(start):
            plan = self._setup.plan(index)
            cohort = self._setup.cohort(index, plan)
            yield Round(tuple(Task(k, index, plan) for k in cohort), tuple(cohort))

    def _synchronous(self, fleet: Fleet) -> Iterator[Round]:
        clock = 0.0
        for index in itertools.count():
            this = self._round(fleet, index, clock)
            clock += this.seconds or 0.0
            yield this

    def _round(self, fleet: Fleet, index: int, clock: float) -> Round:
        """Return the round that begins at a time [s]."""
        federation = self._config.federation
        plan = self._setup.plan(index)
        asked, wanted = self._asked(fleet, index, plan, clock)
        limit, partial = federation.deadline or math.inf, federation.partial_work
        steps = plan.local_epochs * self._steps[asked]
        fixed, step = self._fixed(asked, steps > 0), self._step[asked]
        if partial:
            fitting = np.maximum(limit - fixed, 0) / np.where(step > 0, step, 1) + _ROUNDING
            steps = np.minimum(steps, np.maximum(np.floor(fitting), 1)).astype(np.int64)
        seconds = fixed + steps * step
        late = seconds > limit * (1 + _ROUNDING)
        # Each client's own draws: whether it drops out, and after what share of its time.
        chance, share = numpy_generator(self._config.seed, "dropout", index).random((2, len(asked)))
        dropped = chance < fleet.failure[asked]
        done = np.flatnonzero(~dropped & ~late)
        used = np.sort(done[np.lexsort((asked[done], seconds[done]))[:wanted]])
        if len(used) < wanted and (late & ~dropped).any():
            took = limit  # the server waits for those that do not come
        elif len(used):
            took = float(seconds[used].max())
        else:
            took = float(np.minimum(share * seconds, limit)[dropped].max(initial=0.0))
        made = zip(asked[used].tolist(), steps[used].tolist(), strict=True)
        return Round(
            tuple(Task(k, index, plan, max_steps=most if partial else None) for k, most in made),
            tuple(asked.tolist()),
            late=len(asked) - len(used) - int(dropped.sum()),
            dropped=int(dropped.sum()),
            seconds=took,
        )

    def _asked(self, fleet: Fleet, index: int, plan: RoundPlan, clock: float) -> tuple[Ids, int]:
        """Return the clients that a round asks, ascending, and how many of them it wants."""
        pool = self._setup.pool(plan)
        online = pool[fleet.online(clock)[pool]]
        if len(pool) and not len(online):
            raise _nobody(f"round {index + 1}", clock)
        if plan.cohort == "all":
            return online, len(pool)
        wanted = self._config.cohort_size
        size = math.ceil(wanted * self._config.federation.over_selection - _ROUNDING)
        return self._setup.drawn(online, index, size), wanted

    def _buffered(self, fleet: Fleet) -> Iterator[Round]:
        """Yield server steps of FedBuff: at most `cohort_size` clients train at a time.

        Whoever is done, or drops out, is replaced at once by a client that is online, at rest and
        not in the buffer, with the model of that moment.

        Source: Nguyen et al. 2022, https://arxiv.org/abs/2106.06639, algorithm 1.
        """
        config, seed = self._config, self._config.seed
        clock = before = 0.0
        version, dropped, starts = 0, 0, itertools.count()
        resting = np.zeros(len(self._step), np.bool_)
        resting[self._setup.pool(self._setup.plan(0))] = True
        working: list[tuple[float, int, int, bool]] = []  # when it ends, who, from what, if in vain
        buffer: list[tuple[int, int]] = []  # from what, who
        asked: list[int] = []
        while True:
            while len(working) < config.cohort_size:
                ready = np.flatnonzero(resting & fleet.online(clock))
                if not len(ready):
                    break
                rng = numpy_generator(seed, "start", next(starts))
                k = int(ready[rng.integers(len(ready))])
                steps = self._setup.plan(version).local_epochs * self._steps[[k]]
                seconds = float((self._fixed(np.array([k]), steps > 0) + steps * self._step[k])[0])
                fails = bool(rng.random() < fleet.failure[k])
                ends = clock + seconds * (rng.random() if fails else 1.0)
                heapq.heappush(working, (ends, k, version, fails))
                resting[k] = False
                asked.append(k)
            if not working:
                lower = ", lower federation.buffer_size" if buffer else ""
                raise _nobody(f"server step {version + 1}", clock, lower)
            clock, k, origin, fails = heapq.heappop(working)
            if fails:
                dropped += 1
                resting[k] = True
                continue
            buffer.append((origin, k))
            if len(buffer) < config.federation.buffer_size:
                continue
            yield Round(
                tuple(
                    Task(k, version, self._setup.plan(origin), version=origin)
                    for origin, k in sorted(buffer)
                ),
                tuple(sorted(asked)),
                dropped=dropped,
                seconds=clock - before,
                alive=frozenset({version + 1, *(origin for _, _, origin, _ in working)}),
            )
            resting[[k for _, k in buffer]] = True
            buffer, asked, dropped, before = [], [], 0, clock
            version += 1

    def _check(self, fleet: Fleet) -> None:
        setup, federation = self._setup, self._config.federation
        first = setup.needs.preparatory_rounds
        plan = setup.plan(first)
        pool = setup.pool(plan)
        if federation.deadline is not None and len(pool):
            steps = plan.local_epochs * self._steps[pool]
            least = np.minimum(steps, 1) if federation.partial_work else steps
            fastest = float((self._fixed(pool, steps > 0) + least * self._step[pool]).min())
            if fastest > federation.deadline:
                raise ConfigError(
                    f"federation.deadline={federation.deadline:g}: no client is done in so many"
                    f" seconds; the fastest takes {fastest:.4g}"
                )
        # Otherwise a round may find nobody: in a buffered run, all that are online may have sent.
        if federation.mode == BUFFERED:
            always = (fleet.online_hours[pool] == 24).all() and len(pool) >= federation.buffer_size
        else:
            always = not _gaps(fleet.online_from[pool], fleet.online_hours[pool])
        if len(pool) and not always:
            for _ in itertools.islice(self.rounds(), first + federation.num_rounds):
                pass


def image_flop(setup: Setup, net: Net) -> float:
    """Return the FLOP of training on one image: the encoder's, forward and back, for every view.

    Heads, and targets that are not trained, are left out; a view for these alone counts in full.
    """
    needs, (parameter, *_) = setup.needs, net["encoder"].parameters()
    image = torch.zeros(1, *setup.spec.image_shape, device=parameter.device)
    net.eval()
    with counted() as counter:
        net(image, "encoder")
    views = len(needs.views) + len(needs.second_batch)
    return float(counter.flop * _PASSES * views)


def _gaps(begins: Floats, hours: Floats) -> bool:
    """Return True if there is a time of day at which nobody is online."""
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(begins[order] + hours[order])
    # Those that stay over midnight are there from the start of the day.
    covered = np.maximum(ends, ends[-1] - 24)
    return bool((begins[1:] > covered[:-1]).any() or covered[-1] < begins[0] + 24)


def _nobody(what: str, clock: float, remedy: str = "") -> ConfigError:
    day, minutes = divmod(int(clock // 60), 24 * 60)
    when = f"{minutes // 60:02}:{minutes % 60:02} of day {day + 1}"
    return ConfigError(
        f"devices.profile: nobody is online when {what} begins, at {when}; raise data.num_clients"
        f"{remedy}, or use devices with other hours"
    )


def check_fleet(setup: Setup) -> None:
    """Refuse devices with which some round of a run could not be.

    Raises:
        ConfigError: for fewer devices than clients, a deadline that nobody would meet, or an hour
            of a round with nobody online.
    """
    if setup.config.devices.profile != UNIFORM:
        net = setup.make_net()
        Timeline(setup, lambda: net, setup.layout(net))


def check_devices(config: RunConfig, method: Method) -> None:
    """Refuse settings of devices and of weights by steps that do not go together.

    Raises:
        ConfigError: naming the setting and the reason.
    """
    federation, needs, weighs = config.federation, method.needs(), writes(method, "weigh")
    buffered = federation.mode == BUFFERED
    another = not isinstance(declared_aggregator(method, config.server), Mean)
    if config.server.weighting == "steps":
        _refuse(
            "server.weighting=steps",
            {
                "it is a weighted mean, and the server does not take a mean": another,
                "its norm is that of steps of SGD; set client.optimizer=sgd": (
                    config.client.optimizer != "sgd"
                ),
                f"{config.spec} weighs the uploads itself": weighs,
                "buffered changes are not divided by steps": buffered,
            },
        )
    if config.devices.profile == UNIFORM:
        for section, names in _OF_DEVICES.items():
            given = getattr(config, section)
            for name in names:
                if (value := getattr(given, name)) != getattr(type(given)(), name):
                    raise ConfigError(
                        f"{section}.{name}={value}: takes devices, and devices.profile=uniform has"
                        " none; set it to phones, silos or a CSV"
                    )
        return
    _refuse(
        f"devices.profile={config.devices.profile}",
        {
            f"{config.spec} trains on the pooled images of all clients": needs.pooled,
            f"activations of {config.spec} cross at every step, which is not simulated": (
                "activations" in needs.extras
            ),
            "privacy.clip accounts for clients that take part by independent draws": (
                config.privacy.clip is not None
            ),
        },
    )
    if not buffered:
        if federation.partial_work and federation.deadline is None:
            raise ConfigError("federation.partial_work=true: reads federation.deadline; set it")
        return
    rounds_only = (
        federation.deadline is not None or federation.over_selection > 1 or federation.partial_work
    )
    _refuse(
        "federation.mode=buffered",
        {
            "deadline, over_selection and partial_work are of rounds": rounds_only,
            "statistics of the cohort are summed before a round": needs.pre_round,
            f"the server makes something of {', '.join(needs.extras)} of one round's clients": (
                needs.extras
            ),
            "a control variate is a mean over the clients of a round": needs.mean_gradients,
            "the server needs single uploads of a round": needs.single_uploads,
            f"{config.spec} has preparatory rounds": needs.preparatory_rounds,
            f"{config.spec} weighs the uploads of a round": weighs,
            "the buffer's changes are averaged, and the server does not take a mean": another,
            f"federation.buffer_size={federation.buffer_size} is above data.num_clients="
            f"{config.data.num_clients}": federation.buffer_size > config.data.num_clients,
        },
    )


def _refuse(setting: str, reasons: dict[str, object]) -> None:
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise ConfigError(f"{setting}: cannot be, since {why}")

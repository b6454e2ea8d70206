"""Privacy guarantees of a run: secure sums, client-level privacy, and epsilon."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from fedbench.bench.config import ServerConfig
from fedbench.bench.method import Method, writes
from fedbench.bench.method.blame import error_of_plugin
from fedbench.bench.method.registry import Registered, create
from fedbench.bench.method.sharing import ROWS, Sharing
from fedbench.bench.nn.budget import accountant
from fedbench.bench.system.errors import ConfigError, PluginWarning
from fedbench.bench.training.aggregate import declared_aggregator
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer


def needed_one_by_one(method: Method, server: ServerConfig) -> str:
    """Names of uploads that the server needs of each client; empty if sums over clients will do.

    A method without such uploads works under secure aggregation. They follow from the method's
    sharing table, its `needs()` and its aggregator.
    """
    needs, table = method.needs(), method.sharing()
    if needs.single_uploads:
        return "single uploads"
    if writes(method, "weigh"):
        return "weights of its own for each client's tensors"
    if declared_aggregator(method, server).single_uploads:
        return "single uploads"
    rows = [pattern for pattern, rule in table.items() if rule in ROWS]
    extras = [name for name, extra in needs.extras.items() if not extra.summed]
    return ", ".join([*rows, *extras])


def declared(entry: Registered, methods: Sequence[str]) -> dict[str, Any]:
    """What clients send and keep under default fields; of an add-on, on its first base.

    `stateless`: no client keeps anything from one of its rounds to the next, as in table 3 of
    Lubana et al. 2022.
    """
    bases = entry.fits(methods)
    if entry.is_addon and not bases:
        return {}
    try:
        method = create(f"{bases[0]}+{entry.name}" if entry.is_addon else entry.name, {})
        needs, table = method.needs(), method.sharing()
        single = needed_one_by_one(method, ServerConfig())
        aggregator = declared_aggregator(method, ServerConfig())
    except Exception as err:  # of a plugin, which costs no other its line
        warnings.warn(f"{entry.name}: {error_of_plugin(err) or err}", PluginWarning, 2)
        return {}
    return {
        "extras": {name: asdict(extra) for name, extra in needs.extras.items()},
        "secure_sum": not single,
        "stateless": Sharing.PERSONAL not in table.values() and not needs.keep_optimizer,
        "not_summed": single.split(", ") if single else [],
        "aggregator": type(aggregator).__name__,
        "memory": aggregator.memory,
    }


def check_privacy(setup: Setup) -> None:
    """Refuse settings of privacy where clipping and noise on sums would not provide it.

    Raises:
        ConfigError: naming the upload or the setting that prevents it.
        ResourceError: if the accountant is not installed.
    """
    config = setup.config
    if config.evaluation.objective_noise is not None:
        used = config.evaluation.objective_max_examples
        if (most := int(setup.client_partition.sizes.max())) > used:
            raise ConfigError(
                f"evaluation.objective_noise: its epsilon is of sums over all images of a client,"
                f" and one has {most:,}; set evaluation.objective_max_examples={most} or higher"
                f" (got {used})"
            )
    if config.privacy.clip is None:
        return
    if setup.needs.pooled:
        raise ConfigError(
            f"privacy.clip: {config.spec!r} trains on the pooled images of all clients, so that"
            " nothing of a client is clipped; leave privacy.clip unset"
        )
    single = needed_one_by_one(setup.method, config.server)
    summed = ", ".join(setup.needs.extras)
    counted = "whether they made a step" if setup.needs.mean_gradients else ""
    if also := single or summed or counted:
        raise ConfigError(
            f"privacy.clip: clients of {config.spec!r} also send {also}, which is"
            " neither clipped nor noised; choose a method that sends averages only, or leave"
            " privacy.clip unset"
        )
    averaged = setup.layout(setup.make_net()).averaged
    if any(slot.name.endswith("running_var") for slot in averaged):
        raise ConfigError(
            "privacy.clip: averaged batch norm statistics may not get noise, a variance could turn"
            " negative; set model.norm=group or batch-local, and model.head_norm=encoder"
        )
    if config.server.weighting != "uniform":
        raise ConfigError(
            f"privacy.clip: server.weighting must be uniform (got {config.server.weighting!r}): the"
            " bound on a client's influence does not hold for weights by size"
        )
    accountant("")


def columns(trainer: Trainer) -> dict[str, Any]:
    """The privacy columns of a finished run's row."""
    ledger, method = trainer.ledger, trainer.setup.method
    return {
        "traffic": ledger.as_dict(),
        "revealing_messages": ledger.revealing,
        "smallest_group": ledger.smallest,
        "secure_sum": not needed_one_by_one(method, trainer.setup.config.server),
        **(_of_clients(trainer) or _of_images(trainer)),
    }


def _of_clients(trainer: Trainer) -> dict[str, Any]:
    privacy = trainer.setup.config.privacy
    if privacy.clip is None:
        return {}
    rounds = Counter(map(trainer.setup.participation, range(trainer.rounds_begun)))
    return {
        "epsilon": client_epsilon(privacy.noise_multiplier, privacy.delta, rounds),
        "delta": privacy.delta,
        "epsilon_of": "a client, in all it sends",
        "privacy": {
            "noise_std": privacy.noise_multiplier * privacy.clip,
            "rounds": {f"{share:g}": times for share, times in sorted(rounds.items())},
        },
    }


def _of_images(trainer: Trainer) -> dict[str, Any]:
    """Privacy of an image of the client that took part most often, in the extras with a budget.

    Each budget holds for any weights that a client has received. Weights are under no budget, so
    the sum over rounds holds only given those weights, once they have been trained on the images.
    """
    needs = trainer.setup.needs
    budgets = {n: extra.budget for n, extra in needs.extras.items() if extra.budget is not None}
    if not budgets:
        return {}
    # Who is late or drops out has received the model, and has sent what comes before the training.
    begun = islice(trainer.timeline.rounds(), trainer.rounds_begun)
    sent = (r.asked if needs.pre_round else [task.client_id for task in r.tasks] for r in begun)
    counts = Counter(chain.from_iterable(sent))
    times = max(counts.values(), default=0)
    return {
        "epsilon": sum(budget.composed(times) if times else 0.0 for budget in budgets.values()),
        "delta": sum(budget.delta for budget in budgets.values()),
        "epsilon_of": f"an image, in {' and '.join(budgets)} only, given the received weights",
        "privacy": {
            "rounds": times,
            "given": "the weights that the client received, in which no image is protected"
            f" from round {needs.preparatory_rounds + 1} on",
            **{
                name: {
                    "epsilon_per_round": budget.epsilon,
                    "delta_per_round": budget.delta,
                    "sum_std": budget.sum_std,
                    "count_parameter": budget.count_parameter,
                }
                for name, budget in budgets.items()
            },
        },
    }


def client_epsilon(
    noise_multiplier: float, delta: float, rounds: Mapping[float, int]
) -> float | None:
    """Epsilon of a client for the models of several rounds; None if there is no bound.

    Each client takes part in each round by an independent draw, and the sum of changes, each of
    norm 1 at most, gets Gaussian noise of standard deviation `noise_multiplier`. Neighbours: with
    and without one client. `rounds` maps the probability of taking part to a number of rounds.
    """
    library = accountant("")
    account = library.pld.PLDAccountant()
    for participation, times in rounds.items():
        noise = library.GaussianDpEvent(noise_multiplier)
        account.compose(library.PoissonSampledDpEvent(participation, noise), times)
    epsilon = float(account.get_epsilon(delta))
    return epsilon if math.isfinite(epsilon) else None

"""Who takes part in a round: the same clients in every process, for past and future rounds."""

from collections.abc import Sequence

import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.method import RoundPlan
from fedbench.bench.system.seeding import generator
from fedbench.bench.training.setup import Setup


def plan_of(setup: Setup, index: int) -> RoundPlan:
    """Return the method's plan of a round, counted from 0, preparatory rounds included."""
    return setup.method.plan_round(index, RoundPlan(setup.config.client.local_epochs))


def cohort_of(setup: Setup, index: int, plan: RoundPlan | None = None) -> list[int]:
    """Return the clients that take part in a round, ascending; those without images never do.

    `plan` is that of the round; None = as the method plans it.
    """
    sizes, plan = setup.partition.sizes, plan or plan_of(setup, index)
    pool = [k for k in range(len(sizes)) if sizes[k] > 0]
    if plan.cohort == "labelled":
        pool = [k for k in pool if (setup.labels[setup.partition.client(k)] >= 0).any()]
    return pool if plan.cohort == "all" else _drawn(setup.config, pool, index)


def participation_of(setup: Setup, index: int) -> float:
    """Return the probability that a client takes part in a round with client-level privacy."""
    everybody = plan_of(setup, index).cohort == "all"
    return 1.0 if everybody else setup.config.federation.participation


def _drawn(config: RunConfig, pool: Sequence[int], index: int) -> list[int]:
    """Return the clients of `pool` that a round draws, ascending.

    Under client-level privacy the draws are independent, since that is what is accounted for.
    """
    rng = generator(config.seed, "cohort", index)
    if config.privacy.clip is not None:
        taken = torch.rand(len(pool), generator=rng) < config.federation.participation
        return [k for k, takes_part in zip(pool, taken.tolist(), strict=True) if takes_part]
    order = torch.randperm(len(pool), generator=rng)
    return sorted(pool[i] for i in order[: config.cohort_size].tolist())

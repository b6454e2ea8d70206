"""Who takes part in a round: the same clients in every process, for past and future rounds."""

import numpy as np
import numpy.typing as npt
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

    `plan` None = as the method plans the round.
    """
    plan = plan or plan_of(setup, index)
    pool = pool_of(setup, plan)
    cohort: list[int] = (
        pool if plan.cohort == "all" else drawn(setup.config, pool, index)
    ).tolist()
    return cohort


def pool_of(setup: Setup, plan: RoundPlan) -> npt.NDArray[np.int64]:
    """Return the clients that a round with this plan may draw, ascending."""
    pool = np.flatnonzero(setup.partition.sizes > 0)
    if plan.cohort != "labelled":
        return pool
    seen = [(setup.labels[setup.partition.client(k)] >= 0).any() for k in pool.tolist()]
    return pool[np.array(seen, np.bool_)]


def participation_of(setup: Setup, index: int) -> float:
    """Return the probability that a client takes part in a round with client-level privacy."""
    everybody = plan_of(setup, index).cohort == "all"
    return 1.0 if everybody else setup.config.federation.participation


def drawn(
    config: RunConfig, pool: npt.NDArray[np.int64], index: int, size: int | None = None
) -> npt.NDArray[np.int64]:
    """Return the clients of `pool` that a round draws, ascending: `size` of them; None = a cohort.

    Under client-level privacy the draws are independent, since that is what is accounted for.
    """
    rng = generator(config.seed, "cohort", index)  # of the round alone: any process can ask
    if config.privacy.clip is not None:
        taken = torch.rand(len(pool), generator=rng) < config.federation.participation
        some: npt.NDArray[np.int64] = pool[taken.numpy()]
        return some
    order = torch.randperm(len(pool), generator=rng).numpy()
    chosen: npt.NDArray[np.int64] = np.sort(pool[order[: size or config.cohort_size]])
    return chosen

"""The plan of a study: the values that identify it, and what its store still lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.results.leaderboard.studies import with_ranks
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.fields import flat_config
from fedbench.bench.runs.resolve import Resolved
from fedbench.bench.runs.run import forget_cell
from fedbench.bench.system.identity import canonical_json, content_id
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.random_init import NUM_SEEDS
from fedbench.bench.tuning.rungs import Halving
from fedbench.bench.tuning.samplers import SAMPLERS
from fedbench.bench.tuning.scoring import Scoring
from fedbench.bench.tuning.search import Search
from fedbench.bench.tuning.space import SearchSpace

Params = dict[str, Any]


@dataclass(frozen=True)
class StudyPlan:
    """A study: the values that identify it, and those that all its trials share.

    Attributes:
        search: how it searches, as asked for.
        base: the configuration that trials start from.
        configure: parameters and a seed -> the configuration of a run.
        space: the search space, without the dimensions that the user has set.
        points: parameters of the first trials; for the sampler `grid`, of all trials.
        total: number of trials.
        batch_size: trials that are suggested together.
        store: store of the trials.
        dataset: the data set.
        cluster: where runs are executed.
        halving: rounds after which trials are compared; None = all are run to their end.
    """

    search: Search
    base: Resolved
    configure: Callable[[Params, int], Resolved]
    space: SearchSpace
    points: Sequence[Params]
    total: int
    batch_size: int
    store: Store
    dataset: Dataset
    cluster: Cluster
    halving: Halving | None = None

    @cached_property
    def scoring(self) -> Scoring:
        """The objective by which trials are ranked."""
        return Scoring(self.search.scored_by)

    @cached_property
    def study_id(self) -> str:
        """Name in the store: a readable part, and a hash of everything that changes the trials."""
        name = (self.search.study_name or self.base.config.spec).lower()
        slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:60] or "study"
        return f"{slug}-{content_id(canonical_json(self._identity()))[:10]}"

    @property
    def barrier(self) -> int | None:
        """Trials of which each waits for those before; None if no trial looks at another."""
        return self.batch_size if SAMPLERS[self.search.sampler].learns else None

    @property
    def seeds(self) -> range:
        """Seeds of a trial's runs."""
        first = self.base.config.seed
        return range(first, first + self.search.seeds_per_trial)

    @property
    def untrained_seeds(self) -> range:
        """Seeds of the encoders at random init with which the trials are compared."""
        first = self.base.config.seed
        return range(first, first + NUM_SEEDS)

    def unmeasured(self) -> list[int]:
        """Return the seeds of encoders at random init that the stored study does not have."""
        meta = self.store.study(self.study_id) or {}
        known = {record["seed"] for record in meta.get("untrained", ())}
        return [seed for seed in self.untrained_seeds if seed not in known]

    def _identity(self) -> dict[str, Any]:
        dimensions, values = self.space.dimensions, flat_config(self.base.config)
        objective = self.scoring.name
        return {
            "benchmark": BENCHMARK_VERSION,
            "data": self.dataset.revision,
            "base": {
                key: value
                for key, value in values.items()
                # The revision says which images, and the objective which scores.
                if key not in {*dimensions, "data.name", "evaluation.objectives"}
            },
            "spec": self.base.config.spec,
            "space": {key: dim.model_dump(mode="json") for key, dim in dimensions.items()},
            "points": self.points,
            "sampler": self.search.sampler,
            "batch_size": self.batch_size,
            "seeds_per_trial": self.search.seeds_per_trial,
            "stop_hopeless": False,  # an option of earlier versions
            "name": self.search.study_name,
            **({"code": self.base.config.code} if self.base.config.code else {}),
            **({} if objective == DEFAULT else {"objective": objective}),
            **({} if self.halving is None else {"fidelity": self.halving.as_dict()}),
        }

    def outdated(self) -> tuple[str, ...]:
        """Return the stored studies that differ from this one in the code of packages only.

        Those whose values a stored run has are left out.
        """
        if not self.base.config.code:
            return ()
        mine = json.loads(canonical_json(self._identity()))
        names = {*mine, "objective", "fidelity"} - {"code"}
        alike = []
        for study_id in self.store.studies():
            meta = self.store.study(study_id) or {}
            if (
                study_id != self.study_id
                and meta.get("code")
                and all(meta.get(name) == mine.get(name) for name in names)
            ):
                alike.append(study_id)
        used = {row.study_id for row in self.store.rows()} if alike else set()
        return tuple(study_id for study_id in alike if study_id not in used)

    def description(self) -> dict[str, Any]:
        """Return the content of `study.json`, as far as it is known from the start."""
        return {
            "study_id": self.study_id,
            "preset": self.base.preset,
            "optuna": version("optuna"),
            "seed": self.base.config.seed,
            "config": self.base.config.model_dump(mode="json"),
            "dataset": self.dataset.name,
            "whole": self.dataset.whole,
            **self._identity(),
        }

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials of the store."""
        return with_ranks(self.store.trials(self.study_id), self.scoring.name)

    def kept(self, stored: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the trials that need no further run.

        A failed one is run again, unless others were suggested, or went on to another rung, after
        it: another outcome would change the study. With halving whole brackets are kept; the
        records of others are read again, rung by rung.
        """
        last = max((trial["number"] for trial in stored), default=0)

        def stays(trial: Mapping[str, Any]) -> bool:
            if trial["status"] != "error":
                return True
            if self.halving is not None:
                return "rung" in trial
            size = self.barrier
            return size is not None and trial["number"] // size < last // size

        kept = [trial for trial in stored if stays(trial)]
        if self.halving is None:
            return kept
        numbers = {trial["number"] for trial in kept}
        brackets = [b for b in self.halving.brackets(self.total) if numbers.issuperset(b)]
        return [trial for trial in kept if any(trial["number"] in b for b in brackets)]

    def missing(self, stored: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of trials to run."""
        return self.total - sum(1 for trial in self.kept(stored) if trial["number"] < self.total)

    def run_name(self, number: int, seed: int) -> str:
        """Return the name of a run's folder; no other study, and no sweep, works in it."""
        return f"{self.study_id}.{number:04d}.{seed}"

    def random_init_name(self, seed: int) -> str:
        """Return the name of the folder in which an encoder at random init is measured."""
        return f"{self.study_id}.untrained.{seed}"

    def forget_runs(self, numbers: Iterable[int]) -> None:
        """Delete the folders of trials' runs, since only their records are kept."""
        self._forget(self.run_name(number, seed) for number in numbers for seed in self.seeds)

    def forget_random_inits(self) -> None:
        """Delete the folders in which encoders at random init were measured."""
        self._forget(map(self.random_init_name, self.untrained_seeds))

    def _forget(self, names: Iterable[str]) -> None:
        place = Store(self.cluster.checkpoints or self.store.root)
        for name in names:
            forget_cell(place, name)

"""Studies for optuna-dashboard: mirrored into a journal, which is derived and may be deleted."""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from fedbench.bench.errors import ResourceError, StoreError, UnknownNameError
from fedbench.bench.results.store import Store
from fedbench.bench.tuning.dimensions import Dimension
from fedbench.bench.tuning.space import SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_DIMENSION: TypeAdapter[Dimension] = TypeAdapter(Dimension)


@dataclass(frozen=True)
class Mirror:
    """A journal that Optuna's tools read.

    Attributes:
        file: the journal.
        studies: ids of the studies in it.
        num_trials: trials in it.
    """

    file: Path
    studies: tuple[str, ...]
    num_trials: int

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench dashboard --json` prints."""
        return {"file": str(self.file), "studies": [*self.studies], "num_trials": self.num_trials}


def mirror(store: Store, study_id: str | None = None) -> Mirror:
    """Write the store's studies, or one of them, as an Optuna journal, anew.

    Raises:
        UnknownNameError: no such study.
        StoreError: a store without studies, or a study without a description.
    """
    known = store.studies()
    if study_id is not None and study_id not in known:
        raise UnknownNameError("study", study_id, known)
    chosen = known if study_id is None else [study_id]
    if not chosen:
        raise StoreError(f"no study in {str(store.root)!r}; `fedbench tune simclr` makes one")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = store.root / "optuna.journal"
    store.check_writable()
    file.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # journals are marked as experimental
        storage = JournalStorage(JournalFileBackend(str(file)))
        count = 0
        for name in chosen:
            meta = store.study(name)
            if meta is None:
                raise StoreError(f"study {name!r} has no description; run its `tune` again")
            dimensions = {k: _DIMENSION.validate_python(v) for k, v in meta["space"].items()}
            space = SearchSpace(meta["spec"], dimensions, (), "the store").distributions()
            study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
            for key in ("spec", "preset", "sampler"):
                study.set_user_attr(key, meta.get(key))
            trials = [_trial(trial, space) for trial in store.trials(name)]
            study.add_trials(trials)
            count += len(trials)
    return Mirror(file, tuple(chosen), count)


def _trial(trial: dict[str, Any], space: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    value = trial["objective"]
    done = trial["status"] == "ok" and value is not None and math.isfinite(value)
    states = {"error": TrialState.FAIL}
    return create_trial(
        state=TrialState.COMPLETE if done else states.get(trial["status"], TrialState.PRUNED),
        value=value if done else None,
        params=trial["params"],
        distributions={name: space[name] for name in trial["params"]},
        user_attrs={
            "number": trial["number"],
            "status": trial["status"],
            "seconds": trial["seconds"],
            "seeds": trial["seeds"],
            **trial["watched"],
        },
    )


def serve(mirrored: Mirror, port: int) -> None:
    """Show a mirror in optuna-dashboard, to this machine only, until it is interrupted."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna_dashboard import run_server

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        storage = JournalStorage(JournalFileBackend(str(mirrored.file)))
    run_server(storage, host="127.0.0.1", port=port)


def check_installed(mirrored: Mirror) -> None:
    """Whether there is a dashboard to start.

    Raises:
        ResourceError: if optuna-dashboard is not installed.
    """
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise ResourceError(
            f"{str(mirrored.file)!r} is written, but optuna-dashboard is not installed:"
            " pip install 'fedbench[dashboard]'"
        )

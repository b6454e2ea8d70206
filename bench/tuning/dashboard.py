"""Studies of a store as a journal of Optuna, which optuna-dashboard and Optuna itself read."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError, UnknownNameError
from fedbench.bench.tuning.space import Dimension, SearchSpace


@dataclass(frozen=True)
class Journal:
    """A journal of Optuna, and the studies in it.

    Attributes:
        file: the journal.
        studies: ids of the studies.
        num_trials: trials of all of them.
    """

    file: Path
    studies: tuple[str, ...]
    num_trials: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `fedbench dashboard --json`."""
        return {"file": str(self.file), "studies": [*self.studies], "num_trials": self.num_trials}


def write_journal(store: Store, study_id: str | None = None) -> Journal:
    """Write the store's studies, or one of them, to `optuna.journal`; replaces an older one.

    Raises:
        UnknownNameError: no such study.
        StoreError: no store, a store without studies, or a study whose description is missing or
            of another version.
    """
    known = store.require().studies()
    if study_id is not None and study_id not in known:
        raise UnknownNameError("study", study_id, known)
    if not known:
        raise StoreError(f"no study in {str(store.root)!r}; `fedbench tune simclr` creates one")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen = known if study_id is None else [study_id]
    studies = {name: _study(store, name) for name in chosen}
    store.check_writable()
    file = store.root / "optuna.journal"
    file.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExperimentalWarning
        storage = JournalStorage(JournalFileBackend(str(file)))
    for name, (about, trials) in studies.items():
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
        for key, value in about.items():
            study.set_user_attr(key, value)
        study.add_trials(trials)
    return Journal(file, tuple(chosen), sum(len(trials) for _, trials in studies.values()))


def _study(store: Store, study_id: str) -> tuple[dict[str, Any], list[Any]]:
    """Return what the dashboard shows of a study, and its trials in Optuna's type."""
    meta = store.study(study_id) or {}
    try:
        dimensions = TypeAdapter(dict[str, Dimension]).validate_python(meta["space"])
        space = SearchSpace(meta["spec"], dimensions, (), "").distributions()
        return (
            {key: meta[key] for key in ("spec", "preset", "sampler")},
            [_trial(trial, space) for trial in store.trials(study_id)],
        )
    except (KeyError, ValueError) as err:
        raise StoreError(
            f"study {study_id!r}: its study.json is missing, or of another version of fedbench"
            f" ({' '.join(str(err).split())[:100]}); name another study, or run its `tune` again"
        ) from err


def _trial(trial: dict[str, Any], space: dict[str, Any]) -> Any:
    from optuna.trial import TrialState, create_trial

    value = trial["objective"]
    done = trial["status"] == "ok" and value is not None and math.isfinite(value)
    undone = TrialState.FAIL if trial["status"] == "error" else TrialState.PRUNED
    about = {name: trial[name] for name in ("number", "status", "seconds", "seeds")}
    return create_trial(
        state=TrialState.COMPLETE if done else undone,
        value=value if done else None,
        params=trial["params"],
        distributions={name: space[name] for name in trial["params"]},
        user_attrs={**about, **trial["watched"]},
    )

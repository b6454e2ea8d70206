"""Studies for optuna-dashboard, copied to a journal that may be deleted at any time."""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ResourceError, StoreError, UnknownNameError
from fedbench.bench.system.packages import install_extra
from fedbench.bench.tuning.space import Dimension, SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial


_DIMENSION: TypeAdapter[Dimension] = TypeAdapter(Dimension)


@dataclass(frozen=True)
class Mirror:
    """Copy of studies in a journal of Optuna.

    Attributes:
        file: the journal.
        studies: ids of the studies in it.
        num_trials: trials in it.
    """

    file: Path
    studies: tuple[str, ...]
    num_trials: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `fedbench dashboard --json`."""
        return {"file": str(self.file), "studies": [*self.studies], "num_trials": self.num_trials}


def mirror(store: Store, study_id: str | None = None) -> Mirror:
    """Write the store's studies, or one of them, to an Optuna journal; replaces an older journal.

    Raises:
        UnknownNameError: no such study.
        StoreError: no store, a store without studies, or a study whose description is missing or
            cannot be read by this version; nothing is written then.
    """
    known = store.require().studies()
    if study_id is not None and study_id not in known:
        raise UnknownNameError("study", study_id, known)
    chosen = known if study_id is None else [study_id]
    if not chosen:
        raise StoreError(f"no study in {str(store.root)!r}; `fedbench tune simclr` creates one")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    studies = []
    for name in chosen:
        meta, space = _read_description(store, name)
        studies.append((name, meta, [_trial(name, trial, space) for trial in store.trials(name)]))
    file = store.root / "optuna.journal"
    store.check_writable()
    file.unlink(missing_ok=True)
    storage = _storage(file)
    for name, meta, trials in studies:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
        for key in ("spec", "preset", "sampler"):
            study.set_user_attr(key, meta.get(key))
        study.add_trials(trials)
    return Mirror(file, tuple(chosen), sum(len(trials) for _, _, trials in studies))


def _read_description(
    store: Store, study_id: str
) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Return a study's description, and its space in Optuna's types."""
    meta = store.study(study_id)
    if meta is None:
        raise StoreError(f"study {study_id!r} has no description; run its `tune` again")
    try:
        dimensions = {k: _DIMENSION.validate_python(v) for k, v in meta["space"].items()}
        return meta, SearchSpace(meta["spec"], dimensions, (), "the store").distributions()
    except (KeyError, AttributeError, ValidationError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else "has a space of another form"
        raise StoreError(
            f"study {study_id!r} {problem}: its study.json is of another version of fedbench; name"
            " another study, or run its `tune` again"
        ) from error


def _trial(study_id: str, trial: dict[str, Any], space: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    if foreign := sorted(set(trial["params"]) - set(space)):
        raise StoreError(
            f"trial {trial['number']} of study {study_id!r} has {', '.join(foreign)}, which"
            " are not in the study's space; run its `tune` again under another --study"
        )
    value = trial["objective"]
    done = trial["status"] == "ok" and value is not None and math.isfinite(value)
    undone = TrialState.FAIL if trial["status"] == "error" else TrialState.PRUNED
    return create_trial(
        state=TrialState.COMPLETE if done else undone,
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
    """Serve a mirror with optuna-dashboard, on this machine only, until interrupted."""
    from optuna_dashboard import run_server

    run_server(_storage(mirrored.file), host="127.0.0.1", port=port)


def _storage(file: Path) -> JournalStorage:
    """Open a journal without the warning that journals are experimental."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return JournalStorage(JournalFileBackend(str(file)))


def check_installed(mirrored: Mirror) -> None:
    """Check that optuna-dashboard can be started.

    Raises:
        ResourceError: if optuna-dashboard is not installed.
    """
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise ResourceError(
            f"{str(mirrored.file)!r} is written, but optuna-dashboard is not installed:"
            f" {install_extra('dashboard')}"
        )

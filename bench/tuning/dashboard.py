"""Studies of a store as a journal of Optuna, which optuna-dashboard and Optuna itself read."""

from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import TypeAdapter

from fedbench.bench.results.leaderboard.studies import scored_trials
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.arguments import one_of
from fedbench.bench.system.errors import StoreError
from fedbench.bench.tuning.spaces.samplers import quiet
from fedbench.bench.tuning.spaces.space import Dimension, SearchSpace


def write_journal(store: Store, study_id: str | None = None) -> dict[str, Any]:
    """Write the store's studies, or one of them, to `optuna.journal`; replaces an older one.

    Returns:
        The path of the journal under `file`, the ids of its `studies`, and `num_trials`.
    """
    known = store.require().studies()
    one_of("study", known)(study_id)
    if not known:
        raise StoreError(f"no study in {str(store.root)!r}; `fedbench tune simclr` creates one")
    metas = {name: store.study(name) for name in (known if study_id is None else [study_id])}
    trials = {name: _trials(store, name, meta) for name, meta in metas.items()}
    store.check_writable()
    file = store.root / "optuna.journal"
    file.unlink(missing_ok=True)
    with quiet():
        storage = JournalStorage(JournalFileBackend(str(file)))
        for name, meta in metas.items():
            study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
            for key in ("spec", "preset", "sampler"):
                study.set_user_attr(key, meta.get(key))
            study.add_trials(trials[name])
    num_trials = sum(trial.state.is_finished() for each in trials.values() for trial in each)
    return {"file": str(file), "studies": [*metas], "num_trials": num_trials}


def _trials(store: Store, study_id: str, meta: dict[str, Any]) -> list[FrozenTrial]:
    try:
        dimensions = TypeAdapter(dict[str, Dimension]).validate_python(meta["space"])
        space = SearchSpace(meta["spec"], dimensions, (), "").distributions()
        trials = {t["number"]: _trial(t, space) for t in scored_trials(store, study_id)}
    except (KeyError, ValueError) as err:
        raise StoreError(
            f"study {study_id!r}: its study.json is missing, or of another version of fedbench"
            f" ({' '.join(str(err).split())[:100]}); name another study, or run its `tune` again"
        ) from err
    running = create_trial(state=TrialState.WAITING)  # keeps the numbers of those after it
    return [trials.get(number, running) for number in range(max(trials, default=-1) + 1)]


def _trial(trial: dict[str, Any], space: dict[str, Any]) -> FrozenTrial:
    value = trial["objective"]
    done = trial["status"] == "ok" and value is not None
    undone = TrialState.FAIL if trial["status"] == "error" else TrialState.PRUNED
    return create_trial(
        state=TrialState.COMPLETE if done else undone,
        value=value if done else None,
        params=trial["params"],
        distributions={name: space[name] for name in trial["params"]},
        user_attrs={"status": trial["status"], "seeds": trial["seeds"], **trial["watched"]},
    )

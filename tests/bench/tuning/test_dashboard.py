import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError, UnknownNameError
from fedbench.bench.tuning.dashboard import write_journal

SPACE = {
    "client.lr": {"type": "float", "low": 0.001, "high": 0.3, "log": True, "grid": [0.01]},
    "client.local_epochs": {"type": "int", "low": 1, "high": 4, "log": False, "step": 1},
    "method.temperature": {"type": "choice", "values": [0.1, 0.2]},
}
PARAMS = {"client.lr": 0.01, "client.local_epochs": 2, "method.temperature": 0.1}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "störe")
    for number, (status, objective) in enumerate(
        [("ok", 0.25), ("diverged", None), ("error", None), ("ok", 0.5)]
    ):
        record = {"status": status, "seeds": [0], "params": PARAMS, "objective": objective}
        store.write_trial("one", number, {**record, "seconds": 1.5, "watched": {"knn_acc": 0.5}})
    meta = {"spec": "simclr", "preset": "demo", "sampler": "tpe", "space": SPACE}
    store.write_study("one", meta)
    return store


def load(file: str, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = JournalStorage(JournalFileBackend(file))
    return optuna.load_study(study_name=name, storage=storage)


def test_ranks_are_the_values_of_an_objective_that_ranks_trials(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number, (loss, rho) in enumerate([(2.0, 0.5), (1.0, 0.75)]):
        scores = {"final_loss": loss, "rho": rho, "sep": rho}
        record = {"status": "ok", "seeds": [0], "params": PARAMS, "objective": None}
        store.write_trial("one", number, {**record, "scores": scores, "watched": {}})
    store.write_study("one", {"spec": "simclr", "space": SPACE, "objective": "loss+sep"})
    study = load(write_journal(store)["file"], "one")
    assert [trial.value for trial in study.trials] == [0.0, 1.0]


def test_optuna_reads_the_journal(store: Store) -> None:
    journal = write_journal(store)
    assert (journal["studies"], journal["num_trials"]) == (["one"], 4)
    study = load(journal["file"], "one")
    assert [trial.state for trial in study.trials] == [
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
        TrialState.COMPLETE,
    ]
    assert (study.best_value, study.best_trial.number, study.best_params) == (0.5, 3, PARAMS)
    assert study.best_trial.user_attrs["knn_acc"] == 0.5
    assert study.user_attrs["spec"] == "simclr"
    assert study.trials[0].distributions["client.lr"].log


def test_trials_keep_their_numbers_while_others_run(store: Store) -> None:
    (store.root / "trials" / "one" / "1.parquet").unlink()
    journal = write_journal(store)
    study = load(journal["file"], "one")
    assert (study.best_trial.number, journal["num_trials"]) == (3, 3)
    assert study.trials[1].state is TrialState.WAITING


def test_what_cannot_be_shown_leaves_the_journal_as_it_was(store: Store) -> None:
    with pytest.raises(UnknownNameError, match="'one'"):
        write_journal(store, "on")
    for other in (Store(store.root / "trials"), Store(store.root / "nowhere")):
        with pytest.raises(StoreError):
            write_journal(other)
    write_journal(store)  # in place of an older one
    before = (store.root / "optuna.journal").read_bytes()
    store.write_study("old", {"spec": "simclr"})
    with pytest.raises(StoreError, match="study 'old'"):
        write_journal(store, "old")
    assert (store.root / "optuna.journal").read_bytes() == before

"""Wrong use is refused: exit code 2, two lines at most, nothing written."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from .conftest import Call

WRONG = {
    "run simcrl": "'simclr'",
    "run simclr --preset dmo": "'demo'",
    "run simclr --set client.lrr=1": "did you mean 'client.lr'?",
    "run simclr --set data.name=digts": "did you mean 'digits'?",
    "run simclr --config no.yaml": "no.yaml:",
    "run simclr --device tpu": "'tpu'",
    "run simclr --seed": "'--seed' requires an argument",
    "sweep --grid heterogeneity --method simclr": "--methods",
    "run simclr --workers 0": "'--workers'",
    "run simclr --lanes 2 --workers 3": "--lanes",
    "run simclr --lr 0.1": "--set client.lr=VALUE",
    "run simclr --epochs 3": "--set client.local_epochs=VALUE",
    "run simclr --rounds 3": "write --set federation.num_rounds=VALUE",
    "run simclr --gpus 1": "write --device cuda",
    "tune simclr --gpus 1": "write --gpus-per-trial X or --device cuda",
    "tune simclr --seeds 2": "--seeds-per-trial N or --seed N",
    "config simclr --data cifar10": "--dataset NAME",
    "run simclr --set data.alpha 1": "write --set data.alpha=1",
    "run --set data.alpha 1 simclr": "write --set data.alpha=1",
    "run simclr --dataset digts": "did you mean 'digits'?",
    "run simclr --dataset digits --set data.name=cifar10": "give one",
    "run simclr --set model.backbone=resnet50": "torchvision:resnet50",
    "run moco": "unknown method 'moco' (known: aligned,",
    "run fedavg": "supervised is FedAvg with labels",
    "run simclr --seed 99999999999": "seed:",
    "run simclr --dry-run --set model.width=99999999999": "model.width",
    "run --nope simclr": "--nope",
    "run": "'SPEC'",
    "rnu": "'run'",
    "simclr+uv": "write fedbench run simclr+uv",
    "prepare cifar10": "write fedbench data prepare NAME",
    "run --method byol": "write the name alone: fedbench run simclr",
    "run simclr --epoch 3": "--set client.local_epochs=VALUE",
    "sweep": "'--grid'",
    "sweep --grid het.yaml": "het.yaml: no such file",
    "sweep --grid heterogeneity --seeds 0,x": "--seeds:",
    "sweep --grid heterogeneity --set data.alpha=1": "is an axis of grid",
    "sweep --grid heterogeneity --methods simcrl": "did you mean 'simclr'?",
    "sweep --grid heterogeneity --tuned auto": "use `fedbench tune simclr",
    "tune simclr --sampler tpee": "did you mean 'tpe'?",
    "tune simclr --trials 0": "'--trials'",
    "tune simclr --trials 100000 --seeds-per-trial 2": "--trials",
    f"tune simclr --concurrency {'9' * 400}": "--concurrency",
    "tune simclr --gpus-per-trial nan": "--gpus-per-trial",
    "tune simclr --eta 3": "--eta 3",
    "tune simclr --fidelity halving --sampler cmaes": "--sampler cmaes",
    "tune simclr --fidelity halving --eta 4 --rungs 9": "--rungs",
    "tune simclr --fidelity halving --eta 2 --rungs 2 --trials 6 --batch 4": "--trials 6",
    "run simclr --track wandbb": "did you mean 'wandb'?",
    "leaderboard --metric knm_acc": "'knn_acc'",
    "leaderboard --json --format csv": "--format csv",
    "leaderboard --reach nan": "--reach",
    "leaderboard --over alpa": "did you mean 'alpha'?",
    "leaderboard --over alpha --columns linear": "leave out --columns",
    "data prepare cifar11": "did you mean 'cifar10'?",
    "config simclr --preset mine": "file whose name ends in .yaml",
    "config simclr --set evaluation.probe_fractions=[2.0]": "(got 2.0) [--set]",
    "explain lr": "did you mean 'client.lr' or 'server.lr'?",
    "explain method.temprature": "did you mean 'method.temperature'",
    "explain method.uv.rows simclr": "the add-on 'uv'",
    "explain client.lr simcrl": "did you mean 'simclr'?",
    "presets one-gp": "did you mean 'one-gpu'?",
    "new method simclr": "simclr",
    "new method net": "class Net",
    "new objective none": "class None",
    "new method My_x": "My_x",
    "runs --method simcrl": "did you mean 'simclr'",
    "runs --where data.alpa=1": "'data.alpa'; did you mean",
    "runs --where nonsense": "--where",
    "runs --status broken": "'broken'",
    "verify --rerun -1": "--rerun",
    "verify b.zip": "b.zip",
}


@pytest.mark.parametrize("words", WRONG)
def test_it_is_refused(
    words: str,
    call: Call,
    store: Path,
    finished: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert finished.code == 0, finished.err
    monkeypatch.setenv("FEDBENCH_STORE", str(store))
    monkeypatch.chdir(tmp_path)
    answer = call(*shlex.split(words))
    assert (answer.code, answer.out) == (2, "")
    assert WRONG[words] in answer.err
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []

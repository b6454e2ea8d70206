from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedbench.bench.evaluation.suite import _over_clients, fill_statistics
from fedbench.bench.execution.execute import untrained_figures
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.nn.norms import batch_norms
from tests import specs

CPU = torch.device("cpu")


setup_of = partial(specs.setup_of, data__train_subset=600, data__num_clients=2, model__norm="batch")


def test_statistics_are_the_mean_over_batches_and_nothing_else_changes() -> None:
    setup = setup_of("simclr")
    net = setup.make_net().eval()
    before = {name: value.clone() for name, value in net.named_parameters()}
    first = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    seen: list[torch.Tensor] = []
    hook = first.register_forward_hook(lambda _m, _x, y: seen.append(y.detach()))
    fill_statistics(setup, net, CPU)
    hook.remove()
    assert [len(y) for y in seen] == [200, 200, 200]
    norm = batch_norms(net)[0]
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(
        norm.running_mean, torch.stack([y.mean((0, 2, 3)) for y in seen]).mean(0)
    )
    torch.testing.assert_close(
        norm.running_var, torch.stack([y.var((0, 2, 3)) for y in seen]).mean(0)
    )
    assert all(torch.equal(value, before[name]) for name, value in net.named_parameters())
    assert not any(module.training for module in net.modules())
    assert {norm.momentum for norm in batch_norms(net)} == {0.1}


def test_it_is_the_same_for_every_method_with_this_encoder() -> None:
    filled = []
    for spec in ("simclr", "byol", "orchestra"):
        setup = setup_of(spec)
        net = setup.make_net()
        fill_statistics(setup, net, CPU)
        filled.append(net["encoder"].state_dict())
        if spec == "byol":  # the target starts as a copy, and is filled like the encoder
            target = net["target_encoder"].state_dict()
            assert all(torch.equal(target[name], filled[-1][name]) for name in target)
    for other in filled[1:]:
        assert all(torch.equal(filled[0][name], other[name]) for name in other)


@pytest.mark.parametrize("change", [{"model__norm": "group"}, {"data__train_subset": 1}])
def test_without_batch_norm_or_with_one_image_nothing_changes(change: dict[str, Any]) -> None:
    setup = setup_of("simclr", **{"data__num_clients": 1, **change})
    net = setup.make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    fill_statistics(setup, net, CPU)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("spec", ["simclr", "pfedae"])
def test_a_run_reports_the_same_figures(spec: str, tmp_path: Path) -> None:
    from fedbench import run

    sets = {"data.train_subset": 200, "federation.num_rounds": 1, "model.norm": "batch"}
    result = run(spec, set=sets, store=tmp_path / "store", workers=1)
    figures = untrained_figures(Experiment(result.row.config))
    reported = {
        name.removeprefix("untrained_"): value
        for name, value in result.metrics.items()
        if name.startswith("untrained_") and "_acc" not in name
    }
    assert {name: figures[name] for name in reported} == reported
    assert {"objective", "rho", "delta_views", "sep", "projection_std_ratio"} <= set(reported)


def test_over_clients_metrics_are_means_and_sep_is_of_means() -> None:
    """Deviations of rho from 0.2: 0.1, 0.1, 0.2; SEP is 1 - 0.04 / 0.2, the mean of ratios 0.75."""
    clients = [(0.1, 0.02, 0.8), (0.1, 0.04, 0.6), (0.4, 0.06, 0.85)]
    names = ("rho", "delta_views", "sep")
    found = _over_clients([dict(zip(names, client, strict=True)) for client in clients])
    wanted = {"rho": 0.2, "rho_std": 0.02**0.5, "delta_views": 0.04, "sep": 0.8}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)

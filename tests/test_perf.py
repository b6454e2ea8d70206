"""Benchmarks: they run, and contenders do the same arithmetic; no test checks a time."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client
from fedbench.bench.nn.clustering import cluster_globally
from fedbench.bench.system.seeding import generator
from fedbench.bench.training.client import make_optimizer as fedbench_optimizer
from perf import gpu, table
from perf.__main__ import RIVALS, WORKS, main
from perf.clustering import autograd_clustering
from perf.context import dataset_folder
from perf.evaluation import setup_of
from perf.ours import W1, config_of
from perf.plain import Style, make_net, make_optimizer, step
from perf.turn import ROOT

from .test_makefile import make


@pytest.mark.parametrize(
    ("style", "changes"), [(Style("resnet8"), {}), (Style("resnet18"), W1)], ids=["w2", "w1"]
)
def test_the_bare_loop_does_what_fedbench_does(
    style: Style, changes: dict[str, object], tmp_path: Path
) -> None:
    config = config_of({**changes, "data.num_clients": 2})
    setup = setup_of(config, dataset_folder(None, tmp_path, 20, 10), tmp_path)
    net, plain = setup.make_net(), make_net(style)
    counters = plain.load_state_dict(net.state_dict(), strict=False)
    assert not counters.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in counters.missing_keys)
    # In float32 a norm over 4 examples makes a percent of a gradient out of an order of summation.
    net.double()
    plain.double()
    rng = generator(0, "test")
    first, second = (torch.randn(4, 3, 16, 16, generator=rng).double() for _ in range(2))
    optimizer, batch = make_optimizer(plain), Batch((first, second), torch.full((4,), -1))
    fedbench_sgd = fedbench_optimizer(config.client, list(net.parameters()))
    for _ in range(2):  # the second step has momentum
        loss = setup.method.loss(net, batch, Client(0, 0, rng)).total
        fedbench_sgd.zero_grad()
        loss.backward()
        fedbench_sgd.step()
        assert step(plain, optimizer, first, second, style) == pytest.approx(loss.item(), rel=1e-5)
    trained = dict(net.named_parameters())
    for name, value in plain.named_parameters():
        torch.testing.assert_close(value, trained[name], rtol=1e-4, atol=1e-6)


def test_the_published_clustering_ends_where_ours_does() -> None:
    rng = generator(0, "test")
    points, start = (
        torch.nn.functional.normalize(torch.randn(n, 8, generator=rng), dim=1) for n in (40, 6)
    )
    centroids = cluster_globally(points, start, steps=30)
    torch.testing.assert_close(autograd_clustering(points, start, 30), centroids, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.extended
def test_every_work_runs_and_the_table_of_it(tmp_path: Path) -> None:
    """Works that need other simulators are left out: their environments take gigabytes."""
    folders = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    make("bench", f"ARGS={shlex.join(['--smoke', *folders])}")
    results = table.load(tmp_path / "out")
    assert {*results} == {*WORKS} - {*RIVALS}
    for content in results.values():
        assert content["smoke"]
        assert content["machine"]["cores"] >= 1
        assert content["values"]
    assert results["W3"]["ratios"]["fedbench / bare, 2x1"]["median"] > 0
    unknown = ("Flower", "pfl", "W4", "1 thread")  # rivals, and what tiny sizes call otherwise
    for row in table.targets(results):
        assert "not measured" not in row or any(word in row for word in unknown), row
    assert str(tmp_path) not in json.dumps(results)


def test_a_rival_that_cannot_be_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr("perf.rivals.subprocess.run", run)
    words = ["--smoke", "--only", "W4-flower", "W6", "--repeats", "1"]
    folders = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", ["perf", *words, *folders])
    monkeypatch.setattr("perf.__main__.machine", dict)
    assert main() == 3
    line = "W4-flower is not measured: flower cannot be installed"
    assert line in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["W6.json"]


def test_a_part_ends_when_time_is_over(tmp_path: Path) -> None:
    for seconds, expected in ((60.0, {"a": 0, "b": 0}), (-1.0, gpu.CUT)):
        results = dict[str, Any]()
        bench = gpu.Bench(torch.device("cpu"), tmp_path, True, time.monotonic() + seconds)
        for name in bench.until_end("ab", results):
            results[name] = 0
        assert results == expected


@pytest.mark.extended
def test_every_part_for_a_gpu_runs_without_one(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "perf.gpu", "--smoke", "--out", str(file)]
    command += ["--device", "cpu"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    content = json.loads(file.read_text())
    assert list(content) == list(gpu.PARTS)
    assert not any(
        {"error", "refused", "cut"} & part.keys()
        for part in (*content.values(), *content["methods"].values())
        if isinstance(part, dict)
    )
    lanes = [part for part in content["lanes"].values() if isinstance(part, dict)]
    assert lanes
    assert all(part["same_bits_as_one_lane"] for part in lanes)


def test_without_a_gpu_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "gpu.json")])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert "torch sees no GPU here" in capsys.readouterr().err

"""Runs from given weights: the same bits however they are interrupted, and classes of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedbench.bench.config import RunConfig
from fedbench.bench.execution.export import export_encoder, load_encoder
from fedbench.bench.execution.run import reproduce, run
from fedbench.bench.experiment.fields import canonical
from fedbench.bench.method.ids import config_id, row_id, training_id
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.results.leaderboard.comparability import class_of, classes, titles
from fedbench.bench.results.leaderboard.published import published_number
from fedbench.bench.results.listing import runs
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.terminal.show_runs import show_listing
from fedbench.bench.testing import tiny_config, tiny_setup


def weights(folder: Path, seed: int = 3, norm: str = "batch") -> Path:
    """Write random weights of the tiny encoder, with statistics that batch norm begins without."""
    model = tiny_config("simclr", model__norm=norm).model
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        state = make_backbone(model, 1, (8, 8)).make().state_dict()
    for name, value in state.items():
        if name.endswith("running_var"):
            value.fill_(2.0)
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "start.safetensors")
    return folder / "start.safetensors"


def config_of(file: Path, spec: str = "simclr", **more: Any) -> RunConfig:
    return tiny_config(spec, model__norm="batch", model__weights=str(file), **more)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weights(tmp_path_factory.mktemp("start"))


def test_the_content_counts_and_never_the_path(tmp_path: Path) -> None:
    one, same = weights(tmp_path / "a"), weights(tmp_path / "b")
    first, second, other = map(config_of, (one, same, weights(tmp_path / "c", seed=4)))
    for identity in (row_id, training_id, config_id):
        assert identity(first, "f" * 64) == identity(second, "f" * 64)
        assert identity(first, "f" * 64) != identity(other, "f" * 64)
    random = tiny_config("simclr", model__norm="batch")
    assert row_id(random, "f" * 64) != row_id(first, "f" * 64)


def test_a_hash_is_taken_once_and_then_held(start: Path) -> None:
    config = config_of(start)
    assert config.model.weights == str(start.resolve())
    assert canonical(config) == config
    with pytest.raises(ConfigError, match="weights_sha256"):
        tiny_config("simclr", model__weights_sha256="0" * 64)


@pytest.mark.parametrize("spec", ["simclr", "byol", "fedavg-ae"])
def test_the_first_encoder_is_that_of_the_file(spec: str, start: Path) -> None:
    fields = {"method__latent_dim": 5} if spec == "fedavg-ae" else {}
    given, encoder = load_file(start), tiny_setup(config_of(start, spec, **fields)).make_net()
    state = encoder["encoder"].state_dict()
    inner = {k.removeprefix("0."): v for k, v in state.items() if not k.startswith("1.")}
    for name, value in inner.items():
        assert torch.equal(value, given[name]), name


def test_a_run_is_reproduced_measured_again_and_exported(tmp_path: Path) -> None:
    start = weights(tmp_path)
    store = Store(tmp_path / "store")
    row = run(config_of(start), store=store, workers=2).row
    again = reproduce(row.row_id, store, workers=1)
    assert again.verdict == "same bits"
    further = run(config_of(start, evaluation__protocols=["knn", "mlp"]), store=store).row
    assert further.measured_from == row.row_id
    assert further.objective == row.objective
    exported = export_encoder(row.row_id, tmp_path / "out.safetensors", store=store)
    card = load_encoder(exported.file).card
    assert card["model"]["weights"] == card["config"]["model"]["weights"] == start.name
    assert card["model"]["weights_sha256"] == row.settings["model"]["weights_sha256"]

    onwards = tiny_setup(config_of(exported.file)).make_net()["encoder"].state_dict()
    for name, value in load_file(exported.file).items():
        assert torch.equal(onwards[name], value)

    start.rename(tmp_path / "elsewhere")
    for call in (
        lambda: reproduce(row.row_id, store),
        lambda: export_encoder(row.row_id, tmp_path / "more.safetensors", store=store),
    ):
        with pytest.raises(DataError, match=str(row.config.model.weights_sha256)):
            call()


def test_the_start_is_measured_and_exported_as_it_is_given(start: Path, tmp_path: Path) -> None:
    """Its batch norms keep the statistics of the file, which clients receive."""
    config = config_of(start, federation__num_rounds=0)
    row = run(config, store=tmp_path, workers=1).row
    for name in ("std_ratio", "effective_rank", "knn_acc"):
        assert row.metrics[name] == row.metrics[f"untrained_{name}"]
    given = load_file(start)
    exported = load_file(
        export_encoder(row.row_id, tmp_path / "e.safetensors", store=tmp_path).file
    )
    assert all(torch.equal(value, given[name]) for name, value in exported.items())


def test_starts_have_classes_of_their_own(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    zero: dict[str, Any] = {"federation__num_rounds": 0, "evaluation__untrained": False}
    other = weights(tmp_path, seed=7)
    random = run(tiny_config("simclr", model__norm="batch", **zero), store=store, workers=1).row
    rows = [
        random,
        *(run(config_of(f, **zero), store=store, workers=1).row for f in (start, other)),
    ]
    assert len({class_of(row, "knn_acc") for row in rows}) == 3
    assert all(published_number(row, "linear_acc") is None for row in rows[1:])
    _, keys = classes(store.frame(), "knn_acc")
    texts = titles(keys, {each: ["custom"] for each in keys}, {}).values()
    for row in rows[1:]:
        assert any(str(row.config.model.weights_sha256)[:8] in text for text in texts)
    assert sum("start" in text for text in texts) == 2
    files = [record["start"] for record in runs(store).as_dict()["runs"]]
    assert {*files} == {row.config.model.weights_sha256 for row in rows}
    show_listing(runs(store))
    printed = capsys.readouterr().out
    assert all((file or "")[:8] in printed for file in files)


def test_a_file_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    file = weights(tmp_path, norm="group")
    with pytest.raises(ConfigError, match="running_mean"):
        run(config_of(file), store=tmp_path / "store")
    assert not (tmp_path / "store").exists()

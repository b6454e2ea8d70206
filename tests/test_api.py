"""The package as a library: fast to import, typed, silent, same results as the command line."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbench
from fedbench import RunConfig
from fedbench.bench.experiment.common_options import as_path
from fedbench.bench.method import Loss, Net, registry
from fedbench.bench.method.blame import error_of_plugin
from fedbench.bench.training.history import RoundRecord
from fedbench.methods.supervised import Supervised

TINY = {"federation.num_rounds": 1, "data.train_subset": 200}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def result(store: Path) -> fedbench.RunResult:
    return fedbench.run("fed-simclr", set=TINY, seed=2, store=store, workers=1, device="cpu")


def test_import_loads_nothing_else_until_a_module_is_named() -> None:
    code = (
        "import sys, fedbench\n"
        "print(*sorted(m for m in sys.modules if m.startswith('fedbench.')))\n"
        "print(*sorted({'torch', 'ray', 'pydantic', 'numpy', 'typer'} & set(sys.modules)))\n"
        "print(fedbench.plot.accuracy.__name__, fedbench.plugin.Method.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\naccuracy Method\n"


def test_every_public_name_exists_where_it_is_announced() -> None:
    assert fedbench.__all__ == sorted(fedbench.__all__)
    assert dir(fedbench) == fedbench.__all__
    for name in fedbench.__all__:
        value = getattr(fedbench, name)
        if name != "__version__":
            assert getattr(importlib.import_module(value.__module__), name) is value
        if inspect.isfunction(value):  # its example is a doctest
            assert ">>> " in (value.__doc__ or ""), name
    with pytest.raises(AttributeError, match="'tunes'"):
        _ = fedbench.tunes  # type: ignore[attr-defined]


SETTINGS = ["preset", "set", "config_files", "seed"]
PLACES = ["store", "data_dir", "device"]
CLUSTER = ["concurrency", "gpus_per_trial", "workers", "address", "checkpoint_dir"]
KEYWORDS = {
    "resolve": SETTINGS,
    "run": [*SETTINGS, *PLACES, "workers", "track", "on_round", "on_progress"],
    "plan_run": [*SETTINGS, *PLACES, "workers"],
    "partition": [*SETTINGS, "data_dir", "labels"],
    "tune": [
        *SETTINGS, *PLACES, *CLUSTER, "trials", "seeds_per_trial", "sampler", "space_file",
        "watch_labels", "study_name", "on_progress", "dry_run",
    ],
    "sweep": [
        *SETTINGS[:3], *PLACES, *CLUSTER, "methods", "seeds", "tuned", "retry_failed", "track",
        "on_progress", "dry_run",
    ],
    "merge": ["sources", "store", "dry_run"],
    "verify": ["store"],
    "reproduce": ["run_id", "store", "data_name", "keep", "workers", "on_round", *PLACES[1:]],
    "export_encoder": ["run_id", "file", "store", "data_dir"],
    "studies": ["store"],
}  # fmt: skip


@pytest.mark.parametrize("name", KEYWORDS)
def test_keyword_names_are_a_contract(name: str) -> None:
    function = getattr(fedbench, name)
    assert {*KEYWORDS[name]} <= {*inspect.signature(function).parameters}
    text = function.__doc__.partition("Args:")[2]
    assert [word for word in KEYWORDS[name] if f" {word}: " not in text] == []


def test_run_returns_a_record_and_prints_nothing(
    store: Path, result: fedbench.RunResult, capfd: pytest.CaptureFixture[str]
) -> None:
    again = fedbench.run("simclr+uv", set=TINY, seed=2, store=store, workers=1, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (again.stored_before, result.stored_before) == (True, False)
    assert again.row == result.row
    assert (result.method, result.preset, result.seed) == ("simclr+uv", "demo", 2)
    assert result.metrics["linear_acc"] == result.row.linear_acc
    assert result.metrics["relative_movement"] is not None  # from the row's further metrics


def test_run_takes_a_configuration(store: Path, result: fedbench.RunResult) -> None:
    same = fedbench.run(result.config, store=fedbench.Store(store))
    assert (same.run_id, same.stored_before) == (result.run_id, True)
    with pytest.raises(fedbench.ConfigError, match="RunConfig"):
        fedbench.run(result.config, seed=3, store=store)


def test_configuration_by_hand_is_the_same_run_whatever_it_leaves_out(store: Path) -> None:
    brief = RunConfig.model_validate({"spec": "fed-simclr", "data": {"train_subset": 200}})
    full = fedbench.resolve("simclr+uv").config
    full = full.model_copy(
        update={k: getattr(brief, k) for k in type(brief).model_fields if k not in ("spec",)}
    )
    one, other = (fedbench.plan_run(config, store=store, workers=1) for config in (brief, full))
    assert one.run_id == other.run_id
    assert one.preset == "custom"


def test_rounds_are_reported(tmp_path: Path) -> None:
    seen: list[object] = []
    settings = {**TINY, "federation.num_rounds": 3, "evaluation.protocols": []}

    class Watch(fedbench.RunProgress):
        def start(self, config: RunConfig, devices: Sequence[str]) -> None:
            seen.extend(devices)

        def resume(self, done: int, total: int) -> None:
            seen.append(f"{done} of {total} done")

        def __call__(self, record: RoundRecord, total: int) -> None:
            seen.append((record.round_index, total))
            if seen == ["cpu", (0, 3), (1, 3)]:
                raise KeyboardInterrupt

    def run() -> None:
        place: dict[str, Any] = {"store": tmp_path, "workers": 1, "device": "cpu"}
        fedbench.run("supervised", set=settings, on_progress=Watch("x", quiet=True), **place)

    with pytest.raises(KeyboardInterrupt):
        run()
    run()
    assert seen == ["cpu", (0, 3), (1, 3), "cpu", "2 of 3 done", (2, 3)]


def test_what_is_returned_is_a_table_of_the_same_numbers(
    store: Path, result: fedbench.RunResult
) -> None:
    listing, ranking = fedbench.runs(store), fedbench.leaderboard(store)
    assert [row.row_id for row in listing] == listing.to_frame().run_id.tolist()
    assert len(listing) == len(listing.rows)
    (line,), frame = ranking, ranking.to_frame()
    assert line.mean == frame["mean"].item() == result.metrics["linear_acc"]
    assert line.method == frame["method"].item() == "simclr+uv"
    assert line.method in repr(ranking)
    assert fedbench.leaderboard(store, dataset="cifar10").to_frame().empty
    assert result.curve.round_index.tolist() == [0]
    assert result.curve.loss.notna().all()
    methods, presets = fedbench.list_methods(), fedbench.list_presets()
    assert methods.to_frame().set_index("name").year["orchestra"] == 2022
    assert presets.to_frame().set_index("name").clients["laptop"] == 10
    assert fedbench.studies(store).to_frame().empty
    for table in (listing, ranking, methods, presets):
        assert table._repr_html_().count("<tr") == len(table) + 1


def test_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDBENCH_STORE", raising=False)
    assert fedbench.open_store().root == Path("leaderboards")
    monkeypatch.setenv("FEDBENCH_STORE", str(tmp_path))
    assert fedbench.open_store().root == tmp_path
    assert fedbench.open_store("other").root == Path("other")


def test_the_home_folder_may_be_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fedbench.open_store("~/store").root == tmp_path / "store"
    # Studies and sweeps make it absolute for their processes: a tilde would be below this folder.
    assert as_path("~/data") == tmp_path / "data"


@contextmanager
def undone(switch: Callable[..., None], value: Any, usual: Any) -> Iterator[None]:
    switch(value)
    try:
        yield
    finally:
        switch(usual)


SWITCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "anomaly detection": torch.autograd.detect_anomaly,
    "float64": lambda: undone(torch.set_default_dtype, torch.float64, torch.float32),
    "a device": lambda: torch.device("meta"),
    "default device": lambda: undone(torch.set_default_device, "meta", None),
    "deterministic": lambda: undone(torch.use_deterministic_algorithms, True, False),
    "bf16 products": lambda: undone(torch.set_float32_matmul_precision, "medium", "highest"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", SWITCHES)
def test_no_switch_of_the_session_reaches_a_run(
    name: str, result: fedbench.RunResult, tmp_path: Path
) -> None:
    def state() -> tuple[Any, ...]:
        made = torch.zeros(1, requires_grad=True) * 2
        flags = [torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled()]
        flags += [torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()]
        precision = torch.get_float32_matmul_precision()
        return made.dtype, made.device, made.requires_grad, precision, *flags

    given: dict[str, Any] = {"set": TINY, "seed": 2, "workers": 1, "device": "cpu"}
    with SWITCHES[name]():
        before = state()
        made = fedbench.run("fed-simclr", store=tmp_path, **given)
        assert state() == before
    assert made.metrics == result.metrics


def fails(*_: Any) -> Any:
    raise KeyError("no such view")


KEPT: list[Any] = []


def keeps(self: Supervised, *given: Any) -> Loss:
    out = Supervised.loss(self, *given)
    out = out.plus("last", KEPT[-1]) if KEPT else out
    KEPT.append(out.total)
    return out


def overwrites(self: Supervised, net: Net, *given: Any) -> Loss:
    weights = net.tensor("classifier.weight").exp()
    term = weights.log().sum()
    weights.fill_(1.0)
    return Supervised.loss(self, net, *given).plus("more", term)


@pytest.mark.parametrize(
    ("hook", "code", "match"),
    [
        *((hook, fails, r"plugin tests, test_api.py:\d+ in fails: KeyError: 'no such view'")
          for hook in ("needs", "build", "sharing", "plan_round", "before_local", "draws", "loss",
                       "after_step", "after_local", "server_step", "encode", "embed")),
        *((hook, lambda *_: None, rf"{hook}\(\).* must be a ")
          for hook in ("needs", "build", "sharing", "plan_round", "before_local", "draws", "loss",
                       "encode", "embed")),
        ("after_local", lambda *_: None, "what a client sends must be a Mapping"),
        ("draws", lambda *_: {"noise": [1.0]}, r"'noise' of draws\(\) must be a Tensor"),
        ("loss", keeps, r"'faulty': backward\(\) reaches .* step computed; detach\(\)"),
        ("loss", overwrites, r"test_api.py:\d+ in overwrites: .* in place .*; change a copy"),
    ],
)  # fmt: skip
def test_a_fault_in_a_hook_is_a_fedbench_error(
    hook: str, code: Any, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    KEPT.clear()
    body = {hook: code, "__module__": __name__}
    registry.register("faulty")(type("Faulty", (Supervised,), body))
    with pytest.raises(fedbench.FedbenchError, match=match):
        fedbench.run("faulty", set=TINY, store=tmp_path, workers=1, device="cpu")


def test_an_error_of_a_session_is_a_hooks_or_the_sessions_own() -> None:
    """Such as one by which a callback ends a run."""
    names: dict[str, Any] = {"__name__": "__main__", "Supervised": Supervised}
    source = "class Own(Supervised):\n    def loss(self, *_):\n        return {}['key']\n"
    exec(compile(f"{source}def callback(*_): raise KeyError('stop')\n", "cell.py", "exec"), names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_ENTRIES", dict(registry.entries()))
        registry.register("own")(names["Own"])
        with pytest.raises(KeyError) as raised:
            names["Own"]().loss()
        blamed = "this session, cell.py:3 in loss: KeyError: 'key'"
        assert str(error_of_plugin(raised.value)) == blamed
        with pytest.raises(KeyError) as raised:
            names["callback"]()
        assert error_of_plugin(raised.value) is None

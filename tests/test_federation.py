"""Messages of real clients: the simulation's bits, the ledger's bytes, and what is refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.execution import engines
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import RoundPlan
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.client import Task
from fedbench.federation import Messages, Messaging, Node, own_part
from tests.specs import setup_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("spec", ["simclr", "orchestra", "fedsc", "simclr+scaffold"])
def test_messages_give_the_bits_and_the_bytes_of_a_simulation(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines.ENGINES, "messages", Messaging)
    norm = "batch-local" if spec == "simclr" else "group"  # encoders that differ by client
    config = tiny_config(spec, federation__num_rounds=2, model__width=32, model__norm=norm)
    rows = []
    for name in ("process", "messages"):
        row = execute(Experiment(config), Where(tmp_path / name, engine=name))
        rows.append(row)
        (tmp_path / f"{name}.bin").write_bytes(
            max((tmp_path / name).glob("round-*.safetensors")).read_bytes()
        )
    simulated, sent = rows
    read = [tensor_files.read(tmp_path / f"{name}.bin")[1] for name in ("process", "messages")]
    assert all(torch.equal(read[0][name], value) for name, value in read[1].items())
    assert sent.objective == pytest.approx(simulated.objective, rel=1e-6)
    for column in ("linear_acc", "knn_acc", "bytes_up", "bytes_down", "final_loss"):
        assert getattr(sent, column) == getattr(simulated, column)
    for way in ("up", "down"):
        wire = sent.environment[f"wire_bytes_{way}"]
        assert wire == pytest.approx(getattr(sent, f"bytes_{way}"), rel=0.02)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    setup = setup_of("orchestra")
    layout = setup.layout(setup.make_net())
    messages, task = Messages(setup, layout), Task(1, 1, RoundPlan(1))
    node = Node(own_part(setup, 1), CPU, tmp_path_factory.mktemp("node"))
    server = setup.bound().server.data
    answer = node.answer(messages.request("train", task, server))
    return {"messages": messages, "task": task, "node": node, "answer": answer}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v, t: v.update(version=2), "it is of version 2, not 1"),
        (lambda v, t: v.update(admin=True), "admin: Extra inputs are not permitted"),
        (lambda v, t: v.update(num_steps="3"), "num_steps: Input should be a valid integer"),
        (lambda v, t: v.update(client=2), "it answers another question than train"),
        (lambda v, t: v.update(num_examples=10**6), "it answers another question"),
        (lambda v, t: t.update(images=torch.zeros(3)), "nobody asked for 'images'"),
        (lambda v, t: t.update(upload=t["upload"][1:]), r"'upload' must be torch.float32 \[\d+\]"),
        (lambda v, t: t.update(upload=t["upload"].double()), r"\(got torch.float64 \[\d+\]\)"),
        (lambda v, t: t["upload"].__setitem__(0, torch.nan), "'upload' has NaN or infinity"),
        (lambda v, t: t.pop("upload"), r"\(got nothing\)"),
    ],
)
def test_a_message_that_is_not_as_it_should_be(
    change: Any, why: str, parts: dict[str, Any]
) -> None:
    values, tensors = tensor_files.decode(parts["answer"])
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(values, tensors)
    data = tensor_files.encode(values, tensors)
    with pytest.raises(DataError, match=f"^client 1: its message is refused: .*{why}") as caught:
        parts["messages"].read_answer(data, "train", parts["task"], 40, "client 1")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_message(parts: dict[str, Any]) -> None:
    whole = parts["answer"]
    for data in (b"", b"x" * 100, whole[:-1], whole[:200], whole[:-4] + b"abcd", b"\x80\x04K\x01."):
        with pytest.raises(DataError, match=r"^client 1: its message is refused: "):
            parts["messages"].read_answer(data, "train", parts["task"], 40, "client 1")
    with pytest.raises(DataError, match=r"^the server: its message is refused: "):
        parts["node"].answer(whole[:-1])
    parts["messages"]._most = len(whole) - 1
    with pytest.raises(DataError, match=r"it has [\d,]+ bytes, and at most [\d,]+ are due"):
        parts["messages"].read_answer(whole, "train", parts["task"], 40, "client 1")


def test_a_client_has_no_image_of_another() -> None:
    setup = setup_of("simclr")
    own = own_part(setup, 1)
    held = setup.partition.client(1)
    assert len(own.images) == len(own.labels) == len(held) == own.partition.sizes.sum()
    assert (own.images == setup.images[held]).all()
    assert len(own.dataset.test_images) == 0
    assert own.spec == setup.spec


@pytest.mark.parametrize(("spec", "why"), [("pfedae", "activations"), ("central-ae", "pooled")])
def test_what_messages_cannot_carry_is_refused(spec: str, why: str, tmp_path: Path) -> None:
    experiment = Experiment(tiny_config(spec))
    with pytest.raises(
        ConfigError, match=f"^'{spec}' cannot be trained by messages, since .*{why}"
    ):
        Messaging(experiment, experiment.setup, Where(tmp_path), lambda *_: None)


def test_the_package_names_its_engine() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][engines.PLUGINS] == {
        "messages": f"{Messaging.__module__}:{Messaging.__name__}"
    }

"""`model.trainable`: a frozen base costs nothing, whatever the method, and keeps its bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedbench.bench.evaluation.sgd import FRACTIONS
from fedbench.bench.evaluation.suite import fill_statistics
from fedbench.bench.execution.audit import audit
from fedbench.bench.execution.export import export_encoder, load_encoder
from fedbench.bench.execution.guarantees import check_privacy
from fedbench.bench.execution.run import reproduce, run
from fedbench.bench.method import Labels, Net, Sharing, registry
from fedbench.bench.results.leaderboard.comparability import class_of, classes, titles
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.checkpoint import load_checkpoint
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup
from tests.specs import HOOKS, extended

FURTHER_SSL = [
    "simsiam", "spectral", "rotpred", "featarc", "aligned", "ssd", "fedx", "fedsc", "lejepa",
    "mim",
]  # fmt: skip
CPU = torch.device("cpu")


def setup_of(spec: str, trainable: str = "heads", **values: Any) -> Setup:
    needs = registry.create(spec, {}).needs()
    given: dict[str, Any] = {"data__label_fraction": 0.5} if needs.labels is Labels.SOME else {}
    given |= {"method__global_steps": 3} if "orchestra" in spec else {}
    given |= {"model__norm": "batch", "model__trainable": trainable, **values}
    return tiny_setup(tiny_config(spec, **given))


def start_of(setup: Setup) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in setup.make_net().state_dict().items()}


@pytest.mark.parametrize(
    ("spec", "trainable"),
    [
        *((spec, "heads") for spec in HOOKS if "+" not in spec),  # the contract has all methods
        *((spec, "last:1") for spec in ("byol", "pfedae", "simclr")),
        *((f"{spec}+lora", "all") for spec in ("byol", "orchestra", "pfedae", "simclr")),
        *extended([(f"{spec}+lora", "all") for spec in FURTHER_SSL], bool),
        *((f"simclr+{addon}", "heads") for addon in ("fedprox", "scaffold", "l-dawa", "uv")),
        ("simclr+feddecorr", "last:2"),
        ("simclr+fedu2", "heads"),
        *((f"simclr+lora+{addon}", "all") for addon in ("fedprox", "scaffold")),
    ],
)
def test_a_frozen_base_keeps_its_bits_and_is_in_no_message_and_no_checkpoint(
    spec: str, trainable: str, tmp_path: Path
) -> None:
    setup = setup_of(spec, trainable)
    start = start_of(setup)
    train(setup, tmp_path, rounds=1)
    trainer = train(setup, tmp_path)  # from the checkpoint of the first round
    layout, net = trainer.layout, trainer.binding.net
    frozen = {*layout.frozen}
    assert any(name.startswith("encoder.") for name in frozen)
    for name in frozen:
        assert torch.equal(net.tensor(name), start[name]), name
    placed = [slot.name for slot in (*layout.server, *layout.personal)]
    assert {*placed} | frozen == {*start}
    assert not {*placed} & frozen
    checkpoint = load_checkpoint(tmp_path, "0" * 20)
    assert checkpoint is not None
    assert checkpoint.tensors["server"].numel() == sum(
        start[slot.name].numel() for slot in layout.server
    )
    client = Ledger.of_client(layout)
    assert client.bytes_up == 4 * layout.upload_size
    # Whatever is named like no part is an extra, or an activation.
    weights = sum(trainer.ledger.flows["up"][part].bytes for part in client.flows["up"])
    trained = sum(record.cohort_size - record.idle_clients for record in trainer.history)
    assert weights == trained * client.bytes_up


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("byol", {"method__update": "fedu", "method__target": "personal"}),
        ("simsiam", {"method__update": "fedema"}),
        ("byol", {"method__update": "fedema", "method__target": "personal",
                  "model__backbone": "vit-5", "model__width": 12, "model__trainable": "all"}),
    ],
)  # fmt: skip
def test_a_rule_that_goes_by_frozen_convolutions_is_refused(
    spec: str, values: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"method\.update: fed"):
        setup_of(spec, **values).make_net()


def test_a_run_that_would_train_nothing_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    setup = setup_of("simclr")
    net = Net({"encoder": setup.make_net()["encoder"]})
    with pytest.raises(ConfigError, match=r"model\.trainable=heads"):
        setup.layout(net)
    with pytest.raises(ConfigError, match="4 layers"):
        run(tiny_config("simclr", model__trainable="last:4"), store=tmp_path / "store")
    with pytest.raises(ConfigError, match="fedprox"):
        run(tiny_config("pfedae+fedprox"), store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("value", ["none", "last", "last:0", "last:-1", "last:1.5", "heads "])
def test_bad_values_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\.trainable: .*last:N"):
        tiny_config("simclr", model__trainable=value)


def test_a_run_is_repeated_exported_and_has_a_class_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    config = tiny_config("simclr", model__norm="batch", model__trainable="last:1")
    row = run(config, store=store, workers=1).row
    assert reproduce(row.row_id, store, workers=1).verdict == "same bits"
    lanes = train(tiny_setup(config), tmp_path / "lanes", lanes=2)
    assert_same_run(train(tiny_setup(config), tmp_path / "alone"), lanes)

    exported = export_encoder(row.row_id, tmp_path / "out.safetensors", store=store)
    encoder = load_encoder(exported.file)
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    start = start_of(tiny_setup(config))
    for name, value in load_file(exported.file).items():
        same = torch.equal(value, start[f"encoder.{name}"])
        assert same or name.startswith("blocks.2."), name
    onwards = tiny_config(
        "simclr", model__norm="batch", model__trainable="heads", model__weights=str(exported.file)
    )
    heads = run(onwards, store=store, workers=1).row
    assert heads.num_parameters == row.num_parameters
    assert heads.metrics["knn_acc"] == heads.metrics["untrained_knn_acc"] == row.knn_acc

    assert len({class_of(each, "knn_acc") for each in (row, heads)}) == 2
    _, keys = classes(store.frame(), "knn_acc")
    texts = titles(keys, {each: ["custom"] for each in keys}, {}).values()
    for words in ("heads trained", "last:1 trained"):
        assert sum(words in text for text in texts) == 1
    assert heads.settings["model"]["trainable"] == "heads"


def test_a_base_that_is_made_otherwise_is_refused(tmp_path: Path) -> None:
    setup = setup_of("simclr")
    train(setup, tmp_path, rounds=1)
    with pytest.raises(StoreError, match="frozen"):
        train(setup_of("simclr", model__init="he-fan-out"), tmp_path)  # as another library draws


def test_statistics_of_frozen_norms_are_not_filled() -> None:
    setup = setup_of("byol", "last:1")
    net = setup.make_net()
    layout, before = setup.layout(net), start_of(setup)
    fill_statistics(setup, net, CPU)
    state = net.state_dict()
    changed = {name for name, value in state.items() if not torch.equal(value, before[name])}
    assert "encoder.blocks.2.norm1.running_mean" in changed
    assert not changed & {*layout.frozen}


def test_fine_tuning_trains_an_encoder_that_was_frozen_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe judges an encoder as a start, however that was trained."""
    for fraction in FRACTIONS:
        monkeypatch.setitem(FRACTIONS, fraction, (2, 8, 1))
    values: dict[str, Any] = {"federation__num_rounds": 0, "evaluation__protocols": ["finetune"]}
    values |= {"evaluation__untrained": False, "data__test_subset": 20}
    configs = [
        tiny_config("supervised", **values),
        tiny_config("supervised", model__trainable="heads", **values),
        tiny_config("supervised+lora", **values),
    ]
    rows = [run(config, store=tmp_path, workers=1).row for config in configs]
    assert len({row.row_id for row in rows}) == 3
    found = [{k: v for k, v in row.metrics.items() if "finetune" in k} for row in rows]
    assert found[0]
    assert found[0] == found[1] == found[2]


def test_the_audit_and_client_privacy_know_frozen_tensors() -> None:
    private: dict[str, Any] = {"privacy__clip": 1.0}
    audit(setup_of("simclr"))
    check_privacy(setup_of("simclr", model__head_norm="group", **private))
    with pytest.raises(ConfigError, match="statistics"):
        check_privacy(setup_of("simclr", "last:1", model__head_norm="group", **private))


def test_a_table_may_freeze_a_part_of_its_own() -> None:
    teacher = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net = Net({"encoder": nn.Linear(2, 1), "teacher": teacher})
    layout = VectorLayout.of(net, {"teacher.*": Sharing.FROZEN, "*": Sharing.AVERAGED})
    layout.bind(net)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    assert layout.frozen == tuple(f"teacher.{name}" for name in before)
    assert layout.server_size == layout.upload_size == 3
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    net.train()(torch.ones(4, 2), "teacher")
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())

"""The contracts of `fedbench.bench.testing` for every spec, encoder and objective that ships."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import Labels, registry
from fedbench.bench.nn.backbones import BACKBONES
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import (
    BackboneContract,
    MethodContract,
    ObjectiveContract,
    all_tensors,
    tiny_config,
    tiny_setup,
    train,
)
from fedbench.bench.tuning.spaces.space import load_space
from tests.specs import OTHERS, REFUSED, SPECS, TRAINED, setup_of


def but_extended(*names: str) -> Callable[[type], type]:
    """Leave these tests of a contract to the extended run; the contract itself is not marked."""

    def mark(contract: type) -> type:
        for name in names:
            plain = getattr(contract, name)
            copy = wraps(plain)(lambda *args, plain=plain, **kwargs: plain(*args, **kwargs))
            setattr(contract, name, pytest.mark.extended(copy))
        return contract

    return mark


LONG = (
    "test_hidden_labels_change_nothing",
    "test_lanes_change_no_bits",
    "test_clients_of_any_size_work",
    "test_clients_without_a_step_do_not_stop_the_others",
)


METHODS = [spec for spec in SPECS if "+" not in spec]


class TestEveryMethod(MethodContract):
    """Contract of every registered method; registering it is enough to test it."""

    @pytest.fixture(autouse=True, params=METHODS)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.spec = request.param


@but_extended("test_an_interrupted_run_ends_with_the_same_bits", *LONG)
class TestEveryAddOn(MethodContract):
    """Contract of every add-on, on a method; what takes long is for the extended run."""

    @pytest.fixture(autouse=True, params=[spec for spec in TRAINED if "+" in spec])
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.spec = request.param
        # Frozen batch norms of random weights do not norm: at the tests' rate it diverges.
        self.fields = {"client__lr": 0.001} if self.spec == "simclr+lora" else {}


PERSONAL = {"method__target": "personal", "method__update": "fedu"}
STE = {"method__gradient": "ste", "method__latent_dim": 8, "method__server_steps": "single"}


@but_extended(*LONG)
class TestVariants(MethodContract):
    """Contract of clients that remember, and of the mode in which only latents cross."""

    @pytest.fixture(autouse=True, params=[("byol", PERSONAL), ("pfedae", STE)], ids=str)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.spec, self.fields = request.param


FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("byol", {"method__target": "reinit"}),
    ("simsiam", {"method__update": "fedema"}),
    ("featarc", {"method__anchor": "backbone-clean"}),
    ("mim", {"model__backbone": "vit-5", "model__width": 12}),
    # With the tests' rate, momentum and half of the clients it diverges in round 4.
    *((spec, {"client__lr": 0.001} if spec == "mim+scaffold" else {}) for spec in OTHERS),
]


@pytest.mark.extended
class TestEveryComposition(MethodContract):
    """Contract of further variants, and of every other method with every add-on that fits."""

    @pytest.fixture(autouse=True, params=FURTHER, ids=str)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.spec, self.fields = request.param


class TestBackbones(BackboneContract):
    width = 12  # what all of them can be: heads, groups and positions divide it

    @pytest.fixture(params=BACKBONES, autouse=True)
    def _name(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param


class TestObjectives(ObjectiveContract):
    @pytest.fixture(params=SHIPPED, autouse=True)
    def _name(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param


@pytest.mark.parametrize("spec", sorted(REFUSED))
def test_an_addon_with_nothing_to_do_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=spec.partition("+")[2]):
        setup_of(spec).make_net()


@pytest.mark.parametrize(
    ("spec", "base", "off"),
    [
        ("simclr+fedprox", "simclr", {"method__fedprox__mu": 0.0}),
        ("simclr+feddecorr", "simclr", {"method__feddecorr__weight": 0.0}),
        ("simclr+fedu2", "simclr", {"method__fedu2__weight": 0.0, "method__fedu2__combine": False}),
        ("simclr+l-dawa", "simclr", {"method__l-dawa__warmup_rounds": 2}),
        ("ssd", "aligned", {"method__separation": 0.0, "method__distillation": 0.0}),
    ],
)
def test_what_is_switched_off_leaves_the_bits_of_the_base(
    spec: str, base: str, off: dict[str, Any], tmp_path: Path
) -> None:
    plain = all_tensors(train(setup_of(base), tmp_path / "plain"))
    without = all_tensors(train(setup_of(spec, **off), tmp_path / "off"))
    assert torch.equal(plain, without)
    if spec == "simclr+l-dawa":  # and after its warm-up it is another method
        config = tiny_config(spec, **{"method__l-dawa__warmup_rounds": 0})
        assert not torch.equal(plain, all_tensors(train(tiny_setup(config), tmp_path / "on")))


@pytest.mark.parametrize("spec", METHODS)
def test_every_method_goes_with_a_transformer(spec: str) -> None:
    contract = MethodContract()
    contract.spec, contract.fields = spec, {"model__backbone": "cct-4-3x2"}
    contract.test_the_loss_reaches_every_trained_tensor()


@pytest.mark.onednn
@pytest.mark.parametrize("spec", [*METHODS, "simclr+lora"])
def test_every_method_trains_in_bfloat16(spec: str, tmp_path: Path) -> None:
    """The result is finite, with weights in float32; a test of lanes compares bits, for simclr."""
    labelled = registry.create(spec, {}).needs().labels is Labels.SOME
    values = {"federation__num_rounds": 1, "data__label_fraction": 0.5 if labelled else 0.0}
    values["federation__participation"] = 0.25  # one client
    setup = setup_of(spec, client__precision="bf16", **values)
    weights = all_tensors(train(setup, tmp_path))
    assert weights.dtype is torch.float32
    assert bool(weights.isfinite().all())


def test_common_dimensions_have_one_range() -> None:
    """Methods are comparable only if shared dimensions are tuned over the same range."""
    ranges = {load_space(Fields.of(spec)).dimensions["client.lr"] for spec in registry.specs()}
    assert len(ranges) == 1


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("simclr+uv", {"method__uv__uv_on": "unlabelled", "data__label_fraction": 0.5}),
        ("semifed+uv", {"method__threshold": 0.0}),
        ("cbafed+uv", {"method__base_threshold": 0.0, "method__warmup_rounds": 0}),
    ],
)
def test_what_tells_images_apart_by_labels_sees_no_hidden_one(
    spec: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """A tiny run trains on guesses under these thresholds; `uv` sees which labels are hidden."""
    contract = MethodContract()
    contract.spec, contract.fields = spec, fields
    contract.test_hidden_labels_change_nothing(tmp_path)

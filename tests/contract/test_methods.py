"""The contract of `fedbench.bench.testing` over everything that is registered."""

from __future__ import annotations

import pytest

from fedbench.bench import registry
from fedbench.bench.config import RunConfig
from fedbench.bench.fields import known_keys
from fedbench.bench.testing import MethodContract
from fedbench.bench.tuning.space import load_space


class TestEveryMethod(MethodContract):
    """A new method is tested by being registered."""

    @pytest.fixture(autouse=True, params=registry.specs())
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.spec = request.param


@pytest.mark.parametrize("spec", [spec for spec in registry.specs() if "+" not in spec])
def test_every_method_goes_with_a_transformer(spec: str) -> None:
    contract = MethodContract()
    contract.spec, contract.fields = spec, {"model__backbone": "cct-4-3x2"}
    contract.test_the_loss_reaches_every_trained_tensor()


@pytest.mark.parametrize("spec", registry.specs())
def test_every_method_can_be_tuned(spec: str) -> None:
    space = load_space(spec)
    assert set(space.dimensions) <= set(known_keys(spec))
    assert "client.lr" in space.dimensions
    default = RunConfig()
    assert space.dimensions["client.lr"].holds(default.client.lr)


def test_common_dimensions_have_one_range() -> None:
    """Methods are comparable only if what they share is tuned over the same range."""
    ranges = {load_space(spec).dimensions["client.lr"] for spec in registry.specs()}
    assert len(ranges) == 1

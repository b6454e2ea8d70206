"""The contracts of `fedbench.bench.testing` for every encoder and objective that ships."""

import pytest

from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.nn.backbones import BACKBONES
from fedbench.bench.testing import BackboneContract, ObjectiveContract


class TestBackbones(BackboneContract):
    width = 12  # what all of them can be: heads, groups and positions divide it

    @pytest.fixture(params=BACKBONES, autouse=True)
    def _name(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param


class TestObjectives(ObjectiveContract):
    @pytest.fixture(params=SHIPPED, autouse=True)
    def _name(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

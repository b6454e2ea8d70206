"""Explanations of single keys and of single methods."""

import shlex

import pytest

import fedbench
from fedbench.bench.experiment.fields import field_infos, get
from fedbench.bench.experiment.preset_loading import preset_names
from fedbench.bench.method import registry

from .conftest import Call


def test_every_key_has_a_meaning() -> None:
    for entry in registry.entries().values():
        spec = f"{min(entry.bases or ('simclr',))}+{entry.name}" if entry.is_addon else entry.name
        for key, info in field_infos(spec).items():
            assert info.description, f"{spec}: {key}"


@pytest.mark.parametrize("preset", preset_names())
def test_values_are_those_of_a_run(preset: str) -> None:
    """The last value that holds whatever the data are is the one that a run gets."""
    spec = "simclr+uv"
    config = fedbench.resolve(spec, preset=preset, environ={}).config
    for key in ("client.lr", "method.temperature", "method.uv.rows", "data.label_fraction"):
        (record,) = fedbench.explain(key, spec)
        values = [v for v in record["presets"] if v["preset"] == preset]
        certain = [v["value"] for v in values if v["when"].keys() <= {"method", "addon"}]
        assert certain[-1] == get(config, key), key


def test_explain_says_range_unit_and_ways_to_set(call: Call) -> None:
    text = call("explain", "federation.num_rounds", "orchestra").out
    assert "FEDBENCH__FEDERATION__NUM_ROUNDS=10" in text
    (way,) = [
        line for line in call("explain", "evaluation.protocols").out.splitlines() if "--" in line
    ]
    assert shlex.split(way)[-1] == "evaluation.protocols=[knn, linear]"
    entry = call("explain", "client.lr", "orchestra", "--json").json["explanations"][0]
    assert entry["searched"]["orchestra"]["low"] == 0.001
    paper = [v for v in entry["presets"] if v["preset"] == "cross-device"]
    assert [(v["value"], v["origin"]) for v in paper] == [(0.003, "paper")]  # its rule replaces


def test_methods_shows_one_spec(call: Call) -> None:
    assert "method.uv.rows" in call("methods", "fed-simclr").out
    records = call("methods", "fed-simclr", "--json").json
    assert [record["name"] for record in records] == ["simclr", "uv"]
    assert records[0]["fields"]["temperature"]["kind"] == "number > 0"
    assert "cbafed, semifed, simclr" in call("methods", "uv").out
    assert call("methods", "simcrl").code == 2

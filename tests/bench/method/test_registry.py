"""Registry: registration, parsing of specs, validation of fields."""

import re
from dataclasses import fields
from typing import Any

import pytest
import torch
from pydantic import Field, ValidationError
from torch import nn

from fedbench.bench.method import AddOn, Method, Needs, Net, registry
from fedbench.bench.method.base import HOOKS
from fedbench.bench.method.blame import error_of_plugin
from fedbench.bench.system.errors import ConfigError, PluginError, UnknownNameError
from fedbench.methods.supervised import Supervised
from fedbench.methods.uv import UV


def test_entries_serve_listing_and_construction() -> None:
    entry = registry.entries()["uv"]
    assert (entry.name, entry.cls, entry.is_addon) == ("uv", UV, True)
    assert entry.summary == (UV.__doc__ or "").splitlines()[0]
    assert entry.source.endswith("uv.py")
    assert list(registry.entries()) == sorted(registry.entries())
    assert registry.specs() == sorted(registry.specs())
    assert "simclr+uv" in registry.specs()
    assert "supervised+uv" not in registry.specs()
    for spec in registry.specs():
        assert registry.canonical_spec(spec) == spec


def test_aliases_stand_for_specs() -> None:
    assert registry.canonical_spec("local-simclr") == "simclr"
    assert registry.canonical_spec("fed-simclr") == "simclr+uv"
    assert registry.canonical_spec("Fed-SimCLR") == registry.canonical_spec("SimCLR+UV")
    assert registry.canonical_spec("local-simclr+uv") == "simclr+uv"
    assert registry.create("fed-simclr", {}) == registry.create("simclr+uv", {})


@pytest.mark.parametrize(
    ("spec", "kind", "named"),
    [
        ("simcrl", UnknownNameError, "'simclr'"),
        ("", UnknownNameError, "''"),
        ("uv", ConfigError, r"METHOD\+uv"),
        ("simclr+", UnknownNameError, "''"),
        ("simclr+vu", UnknownNameError, "'vu'"),
        ("simclr+supervised", UnknownNameError, "'supervised'"),
        ("supervised+uv", ConfigError, "cbafed, semifed, simclr"),
        ("simclr+uv+uv", ConfigError, "'uv'"),
        ("fed-simclr+uv", ConfigError, "'uv'"),
    ],
)
def test_bad_specs_are_refused(spec: str, kind: type[ConfigError], named: str) -> None:
    with pytest.raises(kind, match=named):
        registry.parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "fields", "named"),
    [
        ("simclr+uv", {"temprature": 0.1}, "'temperature'"),
        ("simclr+uv", {"temperature": 0}, "method.temperature"),
        ("simclr+uv", {"temperature": float("nan")}, "method.temperature"),
        ("simclr+uv", {"variant": "xent"}, "method.variant"),
        ("simclr+uv", {"uv": {"wieght": 1}}, "'weight'"),
        ("simclr+uv", {"uv": {"weight": -1}}, "method.uv.weight"),
        ("simclr+uv", {"uv": 3}, "method.uv"),
        ("simclr+uv", {"uv": {"base": {}}}, "method.uv"),
        ("simclr", {"uv": {}}, "method.uv"),
    ],
)
def test_bad_fields_are_refused_by_name(spec: str, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        registry.create(spec, fields)


@pytest.mark.parametrize(
    "name", ["Mine2", "my method", "my+method", "my_method", "-my", "my--m", ""]
)
def test_names_are_lower_case_words(name: str) -> None:
    with pytest.raises(PluginError, match="lower-case"):
        registry.register(name)(Supervised)


@pytest.mark.parametrize(
    ("base", "body", "named"),
    [
        (Supervised, {"after_steps": lambda *_: None}, "'after_step'"),
        (Supervised, {"__annotations__": {"rate": float}}, "'rate'"),
        (Supervised, {"__annotations__": {"act": object}, "act": print}, "serialize"),
        (Method, {"needs": Supervised.needs, "build": Supervised.build}, "loss"),
    ],
)
def test_classes_that_cannot_work_are_refused(
    base: type[Method], body: dict[str, Any], named: str
) -> None:
    metaclass: Any = type(base)
    cls = metaclass("Theirs", (base,), {"__module__": __name__, **body})
    with pytest.raises(PluginError, match=named):
        registry.register("their-method")(cls)
    with pytest.raises(PluginError):
        registry.register(cls)


def test_names_are_taken_once() -> None:
    with pytest.raises(PluginError, match="'simclr'"):
        registry.register("simclr")(Supervised)
    with pytest.raises(PluginError, match="'fed-simclr'"):
        registry.register("fed-simclr")(Supervised)
    with pytest.raises(PluginError, match="'supervised'; subclass it"):
        registry.register("supervised-2")(Supervised)


def test_a_third_partys_method_is_as_good_as_any() -> None:
    @registry.register("their-method")
    class Theirs(Supervised):
        """Theirs in one line."""

        strength: float = Field(1.0, gt=0)

        def needs(self) -> Needs:
            return Needs(views=("unit",), pixels="unit")

    @registry.register("anywhere")
    class Anywhere(AddOn):
        """Add-on that combines with every method."""

    assert registry.create("their-method", {"strength": 2.0}) == Theirs(strength=2.0)
    assert registry.entries()["their-method"].summary == "Theirs in one line."
    assert {"their-method+anywhere", "simclr+anywhere"} <= set(registry.specs())
    both = registry.create("simclr+uv+anywhere", {"anywhere": {}})
    assert isinstance(both, AddOn)
    assert registry.dump(both).keys() >= {"temperature", "uv", "anywhere"}
    net = Net({"encoder": nn.Flatten(), "projector": nn.Identity()})
    black = torch.full((2, 1, 4, 4), -1.0)
    assert not Theirs().embed(net, black).any()  # as its encoder sees it


def test_every_hook_has_an_example_and_needs_has_fewer_flags_than_there_are_hooks() -> None:
    assert all(">>>" in (getattr(Method, hook).__doc__ or "") for hook in HOOKS)
    assert len(fields(Needs)) < len(HOOKS)


def test_a_wrong_answer_of_needs_is_the_plugins_error_in_one_line() -> None:
    @registry.register("wordy")
    class Wordy(Supervised):
        """Names a view without a comma."""

        def needs(self) -> Needs:
            return Needs(views=("base"))  # type: ignore[arg-type]

    with pytest.raises(ValidationError) as raised:
        Wordy().needs()
    pattern = r"plugin tests, test_registry.py:\d+ in needs: .*views: .* \(got 'base'\)"
    assert re.fullmatch(pattern, str(error_of_plugin(raised.value)))

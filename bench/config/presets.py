"""Presets as their files have them: values with their origins, and rules. Nothing is checked here.

A preset's values can be looked up without the methods, and so without torch.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field, JsonValue

from fedbench.bench.config.identity import section_defaults
from fedbench.bench.config.schema import RunConfig, Strict
from fedbench.bench.config.yaml_files import load_named

FOLDER = "presets"
_DATA = "data.name"


class Value(Strict):
    """One value and its origin: a paper, its released code, or our decision."""

    value: JsonValue
    origin: Literal["paper", "code", "ours"] = Field(alias="from")
    note: str = ""


class Rule(Strict):
    """Values that hold only when all conditions do.

    A condition names a dotted field, `method` (the spec without add-ons) or `addon` (any add-on of
    the spec) and one allowed value or a list of them; `data.name` stands for the content.
    """

    when: dict[str, JsonValue] = Field(min_length=1)
    values: dict[str, Value]

    def allowed(self, condition: str) -> list[JsonValue]:
        """Return the values that a condition allows; none if the rule does not have it."""
        value = self.when.get(condition, [])
        return value if isinstance(value, list) else [value]

    def holds(self, values: Mapping[str, Any], content: Callable[[str], str]) -> bool:
        """Return True for values by dotted name that meet the conditions on fields."""
        # What has to be looked up comes last.
        for key in sorted(self.when.keys() - {"method", "addon"}, key=_DATA.__eq__):
            value = values.get(key)
            if key == _DATA and isinstance(value, str) and ":" in value:
                value = content(value)
            if value not in self.allowed(key):
                return False
        return True

    def fits(self, spec: str) -> bool:
        """Return True for a canonical spec that meets the conditions `method` and `addon`."""
        method, *given = spec.split("+")
        methods, addons = self.allowed("method"), self.allowed("addon")
        return (not methods or method in methods) and (not addons or bool({*addons} & {*given}))


class Equality(Strict):
    """What a board's methods have alike: range of crops, images, client steps; tests hold them."""

    crops: tuple[float, float]  # share of an image that a random crop covers, lowest and highest
    other_crops: dict[str, str] = Field(default_factory=dict)  # method -> which crops, and why
    other_budget: dict[str, str] = Field(default_factory=dict)  # method -> why other steps, images


class Preset(Strict):
    """A preset file."""

    preset: str
    description: str
    source: str
    extends: str | None = None  # a preset whose values hold where this has none; rules come first
    minutes: str = ""  # of a run on one core, as measured, such as 1 to 3; else says on what
    equal: Equality | None = None  # None = the papers' settings, which differ by method
    values: dict[str, Value]  # dotted name -> value
    rules: tuple[Rule, ...] = ()

    def settings(self, spec: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by dotted name of a run with this preset and nothing set by the user.

        Rules look at `given`, the values of the run that is compared with it.
        """
        values = self.values_for(spec, given)
        return {**section_defaults(), **{key: entry.value for key, entry in values.items()}}

    def values_for(
        self, spec: str, user: Mapping[str, Any], content: Callable[[str], str] = str
    ) -> dict[str, Value]:
        """Return the preset's values for a spec.

        Rules are tried in order. Their conditions see the user's values by dotted name, else what
        the preset and earlier rules give, else defaults. `content` gives the name of the content of
        a data set at a path; it is called only where all other conditions of a rule hold.
        """
        values = dict(self.values)
        defaults = {"seed": RunConfig.model_fields["seed"].default, **section_defaults()}
        for rule in self.rules:
            preset = {key: entry.value for key, entry in values.items()}
            if rule.fits(spec) and rule.holds({**defaults, **preset, **user}, content):
                values.update(rule.values)
        return values


def with_base(preset: Preset) -> Preset:
    """Return a preset with the values and rules of the one that it extends."""
    if preset.extends is None:
        return preset
    base = read_preset(preset.extends)
    values, rules = {**base.values, **preset.values}, (*base.rules, *preset.rules)
    return preset.model_copy(update={"values": values, "rules": rules})


def lineage(preset: Preset) -> Iterator[str]:
    """Yield the name of a preset, and of those that it extends."""
    yield preset.preset
    while preset.extends is not None:
        preset = read_preset(preset.extends)
        yield preset.preset


@cache
def read_preset(name: str) -> Preset:
    """Return an installed preset, with the values of the one that it extends."""
    return with_base(Preset.model_validate(load_named(FOLDER, name)))

"""Precedence, sources, overrides, and the errors of configuration."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config.overrides import parse_override, write_override
from fedbench.bench.config.yaml_files import dump_yaml, parse_yaml
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields, flat_config, get
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.method import registry
from fedbench.bench.method.ids import config_id
from fedbench.bench.system.errors import ConfigError, UnknownNameError


def settle(spec: str = "simclr", **given: Any) -> Experiment:
    return resolve(spec, **{"environ": {}, **given})


def write(folder: Path, text: str, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_each_source_overrides_the_ones_before_it(tmp_path: Path) -> None:
    file = write(tmp_path, "client: {lr: 0.04}\n")
    environ = {"FEDBENCH__CLIENT__LR": "5e-2", "FEDBENCH_STORE": "/somewhere"}
    steps: list[tuple[dict[str, Any], Any, str]] = [
        ({}, load_preset("demo").values["client.lr"].value, "preset demo (ours)"),
        ({"tuned": {"client.lr": 0.035}, "study": "s1"}, 0.035, "tuned study s1"),
        ({"config_files": [file]}, 0.04, f"file {file}"),
        ({"environ": environ}, 0.05, "environment FEDBENCH__CLIENT__LR"),
        ({"set": {"client.lr": 0.06, "seed": 4}}, 0.06, "--set"),
    ]
    given: dict[str, Any] = {}
    for step, lr, source in steps:
        given |= step
        resolved = settle(**given)
        assert (resolved.config.client.lr, resolved.sources["client.lr"]) == (lr, source)
    assert (resolved.origin.study_id, resolved.config.seed) == ("s1", 4)
    seeded = settle(**given, seed=7)
    assert (seeded.config.seed, seeded.sources["seed"]) == (7, "--seed")


def test_later_file_wins_and_names_the_preset(tmp_path: Path) -> None:
    first = write(tmp_path, "preset: laptop\nclient.lr: 0.5\nstudy: s9\n", "a.yaml")
    second = write(tmp_path, "client.lr: 0.6\n", "b.yaml")
    resolved = settle(config_files=[first, second])
    assert (resolved.origin.preset, resolved.config.client.lr, resolved.origin.study_id) == (
        "laptop",
        0.6,
        "s9",
    )
    assert resolved.config.data.num_clients == 10
    assert settle(config_files=[first], preset="demo").origin.preset == "demo"


@pytest.mark.parametrize("spec", registry.specs())
def test_every_key_has_a_source_and_the_method_is_complete(spec: str) -> None:
    resolved = settle(spec)
    assert set(resolved.sources) == set(Fields.of(spec).infos)
    assert {key: get(resolved.config, key) for key in Fields.of(spec).infos} == flat_config(
        resolved.config
    )
    dumped = registry.dump(registry.create(spec, resolved.config.method))
    assert resolved.config.method == dumped


def test_equal_configurations_hash_equally() -> None:
    one = settle("fed-simclr", set={"data.alpha": 1, "method.temperature": 1})
    other = settle("simclr+uv", set={"data": {"alpha": 1.0}, "method.temperature": 1.0})
    assert one.config.spec == "simclr+uv"
    assert config_id(one.config, "r") == config_id(other.config, "r")


def test_environment_ignores_case_and_reaches_add_ons() -> None:
    resolved = settle("simclr+uv", environ={"fedbench__method__uv__Rows": "mean"})
    assert get(resolved.config, "method.uv.rows") == "mean"
    resolved = settle(environ={"FEDBENCH__DATA__NAME": "hub:/a_b/c=d"})
    assert resolved.config.data.name == "hub:/a_b/c=d"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evaluation.protocols=[knn, linear]", ("evaluation.protocols", ["knn", "linear"])),
        ("evaluation.protocols=[]", ("evaluation.protocols", [])),
        ("data.name=hub:/x", ("data.name", "hub:/x")),
        ("data.name='7'", ("data.name", "7")),
        ("data.name=hub:/a=b", ("data.name", "hub:/a=b")),
        ("data.name=[[7]]", ("data.name", ["[7]"])),
        ("data.name=", ("data.name", "")),
        ('data.name=hub:/ä"\\b', ("data.name", 'hub:/ä"\\b')),
        ("client.lr=1e-3", ("client.lr", 0.001)),
        ("model.width=null", ("model.width", None)),
    ],
)
def test_parse_override(text: str, expected: tuple[str, Any]) -> None:
    key, value = parse_override(text)
    assert (key, value) == expected
    assert type(value) is type(expected[1])
    assert parse_override(write_override(key, value)) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client.lrr", 1),
        ("spec", "simclr"),
        ("method.temprature", 1),
        ("client.lr", -1),
        ("client.lr", "1e-3"),
        ("client.lr", True),
        ("client.lr", math.nan),
        ("client.lr", 1e38),  # Adam divides it by 1 - 0.9 in its first step
        ("server.epsilon", 1e-60),  # no float32
        ("client.keep_last_batch", 1),
        ("evaluation.protocols", ["linaer"]),
        ("evaluation.labels_from", "held-out"),
        ("evaluation.rounds", [2, 1]),
        ("client.batch_size", 2**31),
        ("data.test_rows", "fold"),
    ],
)
def test_bad_overrides(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(key)) as caught:
        settle(set={key: value})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("[--set]")
    assert caught.value.exit_code == 2


def test_a_section_names_a_field_of_it() -> None:
    with pytest.raises(ConfigError, match=r"'client' .* client\.batch_size"):
        settle(set={"client": 0.1})


def test_values_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set: .*\{'client.lr': 0.1\}.*got \['client.lr=0.1'\]"):
        resolve("simclr", set=["client.lr=0.1"], environ={})  # type: ignore[arg-type]


def test_errors_name_their_source(tmp_path: Path) -> None:
    file = write(tmp_path, "client:\n  lr: '1e-3'\n")
    for given, source in (
        ({"config_files": [file]}, r"file .*x\.yaml"),
        ({"environ": {"FEDBENCH__CLIENT__LRR": "1"}}, "environment FEDBENCH__CLIENT__LRR"),
        ({"environ": {"FEDBENCH__SERVER__LR": "-1"}}, "environment FEDBENCH__SERVER__LR"),
        ({"tuned": {"client.lr": -1.0}, "study": "s"}, "tuned study s"),
    ):
        with pytest.raises(ConfigError, match=rf"\[{source}\]$"):
            settle(**given)


def test_a_file_for_another_method_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "spec: local-simclr\nclient.lr: 0.5\n")
    assert settle("simclr", config_files=[file]).config.client.lr == 0.5
    with pytest.raises(ConfigError, match=r"'local-simclr'.*'superv"):
        settle("supervised", config_files=[file])
    for text, named in (
        ("preset: 3\n", "preset"), ("", "no settings"), ("a.b: 1\na: {b: 2}\n", "'a.b' .* twice"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"x\.yaml: .*{named}"):
            settle(config_files=[write(tmp_path, text)])


WORDS: dict[str, Any] = {
    "1e-3": 0.001, "1e3": 1000.0, "-1.5E+2": -150.0, ".5": 0.5, "1.": 1.0, "0.1": 0.1,
    "10": 10, "-0": 0, "+7": 7, "010": 10, "0o17": 15, "0x1F": 31,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    "null": None, "Null": None, "NULL": None, "~": None,
    ".inf": math.inf, "-.Inf": -math.inf, "+.INF": math.inf,
    "off": "off", "yes": "yes", "on": "on", "No": "No", "tRUE": "tRUE", "none": "none",
    "1:30": "1:30", "1:30.5": "1:30.5", "2020-01-01": "2020-01-01", "1_000": "1_000",
    "0b11": "0b11", "-0x1": "-0x1", "0o8": "0o8", "1e": "1e", ".": ".", "e3": "e3", "=": "=",
    "<<": "<<", "inf": "inf", "nan": "nan",
}  # fmt: skip
"""Words and their values under the core schema of YAML 1.2 (section 10.3.2)."""


@pytest.mark.parametrize("word", WORDS)
def test_files_and_overrides_read_words_alike(word: str) -> None:
    from_file = parse_yaml(f"a: {word}\nb: [{word}, '{word}']\n", "f")
    assert from_file == {"a": WORDS[word], "b": [WORDS[word], word]}
    assert type(from_file["a"]) is type(WORDS[word])
    assert parse_override(f"a={word}") == ("a", from_file["a"])
    assert parse_override(f"b=[{word}, '{word}']") == ("b", from_file["b"])
    assert parse_yaml(dump_yaml({"a": WORDS[word], "b": [word]}), "f") == {
        "a": WORDS[word],
        "b": [word],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n7: 1", r"^f\.yaml: the key 7 "),
        ("? {a: 1}\n: 2", "key"),
        ("a: 1\nb: 2\na: 3", r"^f\.yaml:3: .*\"a\""),
        ("a: [1", r"^f\.yaml:1: expected"),
        ("- 1", "must be a mapping"),
        ("a: !!set {b}", "neither text"),
        ("a: 1\n---\nb: 2", r"^f\.yaml:2: but found another document"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("a: \x00", r"^f\.yaml: "),
        ('a: "\\U00110000"', r"^f\.yaml: "),
    ],
)
def test_yaml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, "f.yaml")
    assert "\n" not in str(caught.value)


def test_yaml_tags_aliases_and_empty_values() -> None:
    text = "a: &x {b: 1}\nc: *x\nd: !!float 1e3\ne: !!str 1e3\n'7':\noff: !!int '8'\n"
    expected = {"a": {"b": 1}, "c": {"b": 1}, "d": 1e3, "e": "1e3", "7": None, "off": 8}
    assert parse_yaml(text, "f") == expected
    assert parse_yaml("", "f") == {}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model.norm": "batch-local", "model.head_norm": "batch"}, "model.head_norm"),
        (
            {
                "evaluation.unseen_clients": 2, "data.held_out": 0.1,
                "data.partition": "natural", "data.natural_column": "writer",
            },
            "data.partition",
        ),
    ],
)  # fmt: skip
def test_values_that_exclude_each_other(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{named}: must be .*\[--set\]$"):
        settle(set=values)


def test_a_phase_that_would_never_come_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cbafed'.*\(got 3\) \[--set\]"):
        settle("cbafed", set={"method.warmup_rounds": 3, "federation.num_rounds": 3})
    settle("cbafed", set={"method.warmup_rounds": 2, "federation.num_rounds": 3})


def test_a_term_on_what_is_never_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="uv_on"):
        settle("cbafed+fedprox+uv", set={"method.uv.uv_on": "unlabelled"})
    settle("semifed+uv", set={"method.uv.uv_on": "unlabelled"})
    for view in ("simclr-x", "unit"):  # unknown; not normalised
        with pytest.raises(UnknownNameError):
            settle("simclr", set={"evaluation.objective_view": view})

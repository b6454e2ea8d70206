"""Presets agree with their sources for every registered spec."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.config.presets import Preset
from fedbench.bench.config.yaml_files import load_named, parse_yaml
from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields, flat_config
from fedbench.bench.experiment.preset_loading import check_preset, load_preset, preset_names
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.experiment.steps import local_steps
from fedbench.bench.method import RoundPlan, registry
from fedbench.bench.system.errors import ConfigError, DataError
from tests.specs import SPECS, labelled

CONTENTS = {
    "hub:/some/where/data": "cifar100",
    "folder:/some/where/cifar100": "folder:cifar100",
    "folder:/unzipped": "tiny-imagenet",
}


def settle(spec: str, preset: str, **overrides: Any) -> RunConfig:
    flat = {key.replace("__", "."): value for key, value in overrides.items()}
    return resolve(spec, preset=preset, set=flat, environ={}, content=CONTENTS.__getitem__).config


@pytest.mark.parametrize("name", preset_names())
def test_presets_decide_what_makes_results_comparable(name: str) -> None:
    checked = check_preset(load_named("presets", name), name)
    assert checked.preset == name
    decided = set(load_preset(name).values)
    needed = {key for key in Fields.of("simclr").infos if key.startswith("client.")} | {
        "federation.num_rounds", "federation.participation",
        "data.name", "data.train_subset", "data.test_subset", "data.num_clients", "data.partition",
        "data.alpha", "model.backbone", "model.width", "model.norm", "model.init",
        "server.optimizer", "server.lr", "server.weighting", "evaluation.protocols",
    }  # fmt: skip
    assert needed - {"client.compile"} <= decided  # a means of speed, off in all of them


SILO = {"data.num_clients": 10, "cohort": 10, "client.batch_size": 256, "client.lr": 0.03}
DEVICE = {  # Orchestra's device setting: half of 100 clients, batches of 16, E = 10, T = 100
    "data.num_clients": 100, "cohort": 50, "data.alpha": 0.1, "client.batch_size": 16,
    "client.local_epochs": 10, "client.keep_last_batch": False, "federation.num_rounds": 100,
    "model.norm": "batch", "client.lr": 0.003, "method.temperature": 0.1,
}  # fmt: skip
MI = {
    "data.partition": "hsu", "data.num_clients": 100, "cohort": 10, "client.lr": 0.1,
    "client.momentum": 0.0, "client.weight_decay": 0.0, "server.optimizer": "adam",
    "server.lr": 0.001, "method.temperature": 0.5, "method.augmentation": "simclr-m",
    "method.hidden_dim": 2048, "method.uv.rows": "mean", "method.uv.code_dim": 128,
}  # fmt: skip
CIFAR100, TINY_IMAGENET = {"data__name": "cifar100"}, {"data__name": "tiny-imagenet"}
MANY = {"data.num_clients": 500, "cohort": 10}
TINY = {
    "model.backbone": "cct-4-3x2", "model.width": None, "model.init": "cct",
    "data.num_clients": 100, "cohort": 10, "federation.num_rounds": 50_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "preset", "given", "expected"),
    [
        ("simclr", "cross-silo", {}, SILO),
        *(
            ("simclr", "cross-device", {"data__name": name}, DEVICE)
            for name in ("cifar10", "cifar100", "hub:/some/where/cifar100")
        ),
        ("supervised", "cross-device", {}, {"client.lr": 0.01}),
        ("simclr+uv", "mi", {}, MI),
        ("simclr", "mi", CIFAR100, MANY),
        ("simclr", "mi", {"data__name": "hub:/some/where/data"}, MANY),
        ("simclr", "mi", {**CIFAR100, "data__num_clients": 50}, {"data.num_clients": 50}),
        ("simclr", "mi", TINY_IMAGENET, TINY),
        ("simclr", "mi", {"data__name": "folder:/unzipped"}, TINY),
        ("simclr", "mi", {**TINY_IMAGENET, "model__backbone": "resnet18"}, {"model.init": "torch"}),
    ],
)
def test_settings_of_the_papers(
    spec: str, preset: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = settle(spec, preset, **given)
    values = {**flat_config(config), "cohort": config.cohort_size}
    assert {key: values[key] for key in expected} == expected


def test_mi_semi_is_mi_with_a_tenth_of_the_labels() -> None:
    for spec in SPECS:
        mi, semi = settle(spec, "mi"), settle(spec, "mi-semi")
        assert semi.data.label_fraction == 0.1
        same = semi.model_copy(update={"data": mi.data, "method": mi.method})
        assert same == mi
    assert settle("semifed", "mi") == settle("semifed", "mi-semi")


def test_methods_that_need_labels_get_some_everywhere() -> None:
    for name in preset_names():
        for spec in ("semifed", "cbafed+uv"):
            assert settle(spec, name).data.label_fraction == 0.1
    with pytest.raises(ConfigError, match=r"label_fraction.*'semifed'"):
        settle("semifed", "demo", data__label_fraction=0)


def test_rules_go_by_content_and_not_by_the_folder(tmp_path: Path) -> None:
    other = settle("simclr", "mi", data__name="folder:/some/where/cifar100")
    assert other.data.num_clients == 100  # CIFAR-10's, which the preset starts from
    # No rule for SimCLR in this preset depends on the data, so nothing is looked up.
    given = {"data.name": f"hub:{tmp_path}/nowhere"}
    resolve("simclr", preset="cross-device", set=given, environ={}, data_dir=tmp_path)
    for spec, preset in (("orchestra", "cross-device"), ("simclr", "mi")):
        with pytest.raises(DataError, match="nowhere"):
            resolve(spec, preset=preset, set=given, environ={}, data_dir=tmp_path)
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(DataError, match="train"):
        resolve("simclr", preset="mi", set=given, environ={}, data_dir=tmp_path)


def crops(config: RunConfig) -> set[tuple[float, float] | None]:
    """Return the share of the image that each random crop covers; None for a view without one."""
    needs = registry.create(config.spec, config.method).needs()
    recipes = [VIEWS[name] for name in (*needs.views, *needs.second_batch)]
    return {recipe.scale if recipe.crop == "resized" else None for recipe in recipes}


def budget(config: RunConfig) -> tuple[int, int, int]:
    """Return client steps of a round, client steps of a run, and the images in them."""
    method = registry.create(config.spec, config.method)
    needs, plan = method.needs(), RoundPlan(config.client.local_epochs)
    dataset = labelled("cifar10", config.data.train_subset)
    counted = local_steps(Experiment(config).on(dataset))
    assert counted.least == counted.most
    assert not config.client.keep_last_batch
    cohort = 1 if needs.pooled else config.cohort_size
    steps = cohort * counted.most
    rounds = config.federation.num_rounds + needs.preparatory_rounds
    trained = sum(method.plan_round(index, plan).local_epochs > 0 for index in range(rounds))
    batches = 1 + bool(needs.second_batch)
    return steps, steps * trained, steps * trained * config.client.batch_size * batches


@pytest.mark.parametrize("name", preset_names())
def test_methods_of_a_board_have_crops_steps_and_images_alike(name: str) -> None:
    """Every registered method and composition, or it is a named exception and really is one."""
    equal = load_preset(name).equal
    assert (equal is None) == (name not in {"cross-device-cpu", "laptop"})
    if equal is None:
        return
    known = {key for key, entry in registry.entries().items() if not entry.is_addon}
    assert {*equal.other_crops, *equal.other_budget} <= known
    of_all = budget(settle("simclr", name))
    for spec in registry.specs():
        config, method = settle(spec, name), spec.split("+")[0]
        leaves_out = registry.entries()[method].cls.relabels  # images with unsure pseudo-labels
        assert (crops(config) != {equal.crops}) == (method in equal.other_crops), spec
        other = leaves_out or budget(config) != of_all
        assert other == (method in equal.other_budget), spec


def test_budgets_of_the_presets_for_a_cpu() -> None:
    """Clients x local epochs x whole batches (x rounds), and the images in these."""
    assert budget(settle("simclr", "laptop")) == (2 * 2 * 31, 1488, 47_616)
    assert budget(settle("orchestra", "cross-device-cpu")) == (10 * 4 * 31, 74_400, 1_190_400)
    # Five passes of one client over 10,000 images, two of them without labels.
    assert budget(settle("central-ae", "laptop")) == (312, 1560, 49_920)
    assert settle("pfedae", "laptop").data.test_subset is None


HEAD = "preset: x\ndescription: d\nsource: s\n"


def parse_preset(text: str, name: str) -> Preset:
    return check_preset(parse_yaml(text, name), name)


def test_rules_apply_in_order_and_see_earlier_rules() -> None:
    preset = parse_preset(
        HEAD + "values: {client.lr: {value: 1.0, from: ours}}\n"
        "rules:\n"
        "- {when: {method: simclr}, values: {client.lr: {value: 2.0, from: ours}}}\n"
        "- {when: {client.lr: 2, addon: [uv]}, values: {server.lr: {value: 3.0, from: paper}}}\n"
        "- {when: {method: byol, seed: 0}, values: {client.lr: {value: 4.0, from: ours}}}\n",
        "x",
    )
    assert set(preset.values_for("simclr", {})) == {"client.lr"}
    assert preset.values_for("simclr+uv", {})["server.lr"].value == 3.0
    assert set(preset.values_for("simclr+uv", {"client.lr": 9.0})) == {"client.lr"}
    assert preset.values_for("supervised", {})["client.lr"].value == 1.0
    by_seed = [preset.values_for("byol", given)["client.lr"].value for given in ({}, {"seed": 1})]
    assert by_seed == [4.0, 1.0]  # a run has seed 0 unless it is given another


ONE = "{value: 1.0, from: ours}"


@pytest.mark.parametrize(
    ("when", "key", "named"),
    [
        ("", "method.temperature", "'method.temperature' .* rule"),
        ("method: simcrl", "client.lr", "'simclr'"),
        ("method: orchestra, addon: uv", "client.lr", "no registered method"),
        ("client.lr: 0.5", "method.temperature", "condition 'method'"),
        ("method: simclr", "method.uv.weight", "condition 'addon'"),
    ],
)
def test_rules_of_no_method_are_refused(when: str, key: str, named: str) -> None:
    values = f"values: {{{key}: {ONE}}}"
    rules = f"values: {{}}\nrules:\n- {{when: {{{when}}}, {values}}}\n" if when else values
    with pytest.raises(ConfigError, match=f"^x: .*{named}"):
        parse_preset(HEAD + rules, "x")


def test_a_preset_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: no such file"):
        load_preset(str(tmp_path / "mine.yaml"))

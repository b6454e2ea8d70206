"""Merge presets, files, environment and command line into one configuration with its sources."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.overrides import parse_value
from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.data.datasets import DATA_DIR_VARIABLE, content_names
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.base import with_kind
from fedbench.bench.data.views.recipes import check_view
from fedbench.bench.evaluation.objectives.scores import scored
from fedbench.bench.evaluation.transfer import with_revisions
from fedbench.bench.experiment.common_options import as_path
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.fields import Fields, canonical
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.method import Labels, registry
from fedbench.bench.method.blame import guarded
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.training.aggregate import check_aggregator
from fedbench.bench.training.devices import with_devices
from fedbench.bench.training.timeline import check_devices

ENVIRONMENT = "FEDBENCH__"
_PLACES = ("FEDBENCH_STORE", DATA_DIR_VARIABLE)
"""Variables without a key, which a misspelt one may mean."""
RESERVED = ("spec", "preset", "study", "caution")
Layer = tuple[str, Mapping[str, Any]]  # a source of values, and the values by dotted name
_log = logging.getLogger(__name__)


@guarded()
def resolve(
    spec: str,
    *,
    preset: str | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    config_files: Sequence[Path | str] = (),
    seed: int | None = None,
    environ: Mapping[str, str] | None = None,
    tuned: Mapping[str, Any] | None = None,
    study: str | None = None,
    data_dir: Path | str | None = None,
    content: Callable[[str], str] | None = None,
) -> Experiment:
    """Build the experiment of a method and further values.

    Later sources win: field defaults, preset, tuned values, files in order, environment
    (`FEDBENCH__CLIENT__LR`), `dataset`, `set`, seed.

    Args:
        spec: method spec; aliases are resolved.
        preset: its name or its YAML file; None = the one that the last file names, else `demo`.
        dataset: a short way to set `data.name`, which takes a path without its kind too.
        set: dotted (or nested) names to values, as `--set` gives them.
        config_files: YAML files, nested or dotted; their `spec`, `preset`, `study` and `caution`
            are no fields, and the last is printed.
        seed: the run's seed.
        environ: environment variables; None = of this process.
        tuned: dotted names to the best values of a tuning study.
        study: that study's id.
        data_dir: cache of data sets, in which the content of a data set at a path is looked up
            where the preset depends on it; None = the default one.
        content: does that look-up in place of one in `data_dir`.

    Raises:
        UnknownNameError: for an unknown method, preset, option or objective.
        ConfigError: for an unknown name or a bad value; names it and its source.
        DataError: if the preset depends on the content of a data set that is not prepared.

    >>> experiment = resolve("fed-simclr", set={"client.lr": 0.1}, environ={})
    >>> experiment.config.spec, experiment.config.client.lr, experiment.sources["client.lr"]
    ('simclr+uv', 0.1, '--set')
    """
    fields = Fields.of(spec)
    infos = fields.infos
    read = {path: _read_file(path, fields) for path in config_files}
    named = "demo"
    for path, (_, reserved) in read.items():
        named, study = reserved.get("preset", named), reserved.get("study", study)
        if "caution" in reserved:
            warn_once(f"{path}: {reserved['caution']}")
    chosen = load_preset(preset or named)
    layers: list[Layer] = [
        (f"tuned study {study}" if study else "tuned", flatten(tuned or {}, keep=infos)),
        *((f"file {path}", values) for path, (values, _) in read.items()),
        *_environment(environ, infos),
        *_named(dataset, set),
        ("--set", flatten(set or {}, keep=infos)),
        ("--seed", {} if seed is None else {"seed": seed}),
    ]
    if seed is not None and "seed" in layers[-2][1]:
        warn_once(f"--set seed={layers[-2][1]['seed']} has no effect beside --seed {seed}")
    user: dict[str, Any] = {}
    sources = dict.fromkeys(infos, "default")
    for source, values in layers:
        for key, value in values.items():
            try:
                fields.check(key, value)
            except ConfigError as err:
                raise ConfigError(f"{err} [{source}]") from err
        user.update(values)
        sources.update(dict.fromkeys(values, source))

    cache = as_path(data_dir)
    look_up = as_read(content or content_names(cache), user)
    base = chosen.values_for(fields.spec, user, look_up)
    for key in base.keys() - user:
        sources[key] = f"preset {chosen.preset} ({base[key].origin})"
    try:
        config = fields.build({key: one.value for key, one in base.items()} | user)
    except ConfigError as err:
        field = str(err).partition(":")[0]
        while field and field not in sources:  # the message may be about an item of a list
            field = field.rpartition(".")[0]
        note = f" [{sources[field]}]" if field in sources else ""
        raise ConfigError(f"{err}{note}") from err
    return _checked(config, Origin(chosen.preset, study), cache, dict(sorted(sources.items())))


def experiment_of(config: RunConfig, origin: Origin, data_dir: Path | None = None) -> Experiment:
    """Return the experiment of a configuration that was made by hand, completed and checked.

    Raises:
        FedbenchError: as `resolve`, without the source of a value.
    """
    return _checked(canonical(with_devices(config)), origin, data_dir, {})


def as_read(content: Callable[..., str], user: Mapping[str, Any]) -> Callable[[str], str]:
    """Return the look-up for data that are read as the user's values say."""
    fields = ("label_column", "image_size", "test_rows")
    reading = Reading(**{name: user.get(f"data.{name}") for name in fields})
    return content if reading == PLAIN else lambda name: content(name, reading)


@cache
def warn_once(text: str) -> None:
    """Log a warning that many runs would repeat."""
    _log.warning("%s", text)


def _named(dataset: str | None, set: Mapping[str, Any] | None) -> list[Layer]:
    if dataset is None:
        return []
    name = with_kind(dataset)
    if (other := flatten(set or {}).get("data.name", name)) != name:
        raise ConfigError(f"--dataset {dataset} and --set data.name={other} differ; give one")
    return [("--dataset", {"data.name": name})]


def user_keys(
    spec: str, files: Sequence[Path | str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Map the dotted names that files and environment set to their sources."""
    fields = Fields.of(spec)
    layers: list[Layer] = [(f"file {path}", _read_file(path, fields)[0]) for path in files]
    layers += _environment(environ, fields.infos)
    return {key: source for source, values in layers for key in values}


def _read_file(path: Path | str, fields: Fields) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's values by dotted name, and its reserved entries."""
    content = load_yaml(Path(path))
    if not content:
        raise ConfigError(f"{path}: has no settings; was it cut off? Leave it out, or mend it")
    reserved = {key: content.pop(key) for key in RESERVED if key in content}
    for key, value in reserved.items():
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key}: must be text (got {value!r})")
    if "spec" in reserved and registry.canonical_spec(reserved["spec"]) != fields.spec:
        raise ConfigError(
            f"{path} is for {reserved['spec']!r} and cannot be used with {fields.spec!r};"
            " remove its line 'spec:' if that is meant"
        )
    try:
        return flatten(content, keep=fields.infos), reserved
    except ConfigError as err:
        raise ConfigError(f"{path}: {err}") from err


def _environment(environ: Mapping[str, str] | None, infos: Iterable[str]) -> list[Layer]:
    """Make one layer per variable of a dotted name; case is ignored, `-` and `_` are equal."""
    environ = os.environ if environ is None else environ
    keys = {variable(key): key for key in infos}
    short = {name.replace("__", "_"): name for name in keys}
    layers: list[Layer] = []
    for name in sorted(environ):
        meant = short.get(name.upper().replace("__", "_"), name.upper())
        if not name.upper().startswith(ENVIRONMENT) and meant != name.upper():
            raise ConfigError(f"environment {name}: write {meant}, with two underscores each time")
        if name not in _PLACES and (close := get_close_matches(name, _PLACES, 1, 0.85)):
            raise ConfigError(f"environment {name}: unknown; did you mean {close[0]}?")
        if name.upper().startswith(ENVIRONMENT):
            rest = name.upper().removeprefix(ENVIRONMENT)
            key = keys.get(name.upper(), rest.lower().replace("__", "."))
            layers.append((f"environment {name}", {key: parse_value(environ[name])}))
    return layers


def variable(key: str) -> str:
    """Return the environment variable that sets a dotted name.

    >>> variable("method.l-dawa.floor")
    'FEDBENCH__METHOD__L_DAWA__FLOOR'
    """
    return ENVIRONMENT + key.upper().replace(".", "__").replace("-", "_")


def _checked(
    config: RunConfig, origin: Origin, data_dir: Path | None, sources: Mapping[str, str]
) -> Experiment:
    """Return the experiment of values that go with what is installed, the method and each other."""
    config, cautions = with_revisions(config, data_dir)
    for line in cautions:
        warn_once(line)
    experiment = Experiment(config, origin, sources, data_dir)
    config, needs, evaluation = experiment.config, experiment.needs, experiment.config.evaluation
    rounds = config.federation.num_rounds
    scored(evaluation.objectives, noise=evaluation.objective_noise is not None)
    check_view(evaluation.objective_view)
    check_aggregator(config, experiment.method, needs)
    check_devices(config, experiment.method)

    def refuse(key: str, rule: str, got: object, named: str = "") -> None:
        source = sources.get(named or key)  # None in a configuration that was made by hand
        note = "" if source is None else f" [{source}]"
        raise ConfigError(f"{key}: must be {rule} (got {got}){note}")

    if config.data.label_fraction == 0 and needs.labels is Labels.SOME:
        rule = f"above 0 for {config.spec!r}, which learns from some labels, for example 0.1"
        refuse("data.label_fraction", rule, 0)
    if 0 < rounds < needs.least_rounds:
        first = f"whose first phase takes {needs.least_rounds - 1} (method.warmup_rounds); set both"
        rule = f"at least {needs.least_rounds} for {config.spec!r}, {first}"
        refuse("federation.num_rounds", rule, rounds)
    if (last := max(evaluation.rounds, default=0)) > rounds:
        refuse("evaluation.rounds", f"at most {rounds}, which is federation.num_rounds", last)
    if evaluation.labels_from == "held-out" and config.data.held_out == 0:
        rule = "above 0, for example 0.1, where evaluation.labels_from is 'held-out'"
        refuse("data.held_out", rule, 0, "evaluation.labels_from")
    if evaluation.unseen_clients:
        if config.data.held_out == 0:
            rule = "above 0, for example 0.1, where evaluation.unseen_clients is"
            refuse("data.held_out", rule, 0, "evaluation.unseen_clients")
        if evaluation.labels_from == "held-out":
            rule = "'clients', since unseen clients hold the other images"
            refuse("evaluation.labels_from", rule, "'held-out'", "evaluation.unseen_clients")
        if PARTITIONERS[config.data.partition].source == "clients":
            rule = "one that deals images out, since unseen clients are made of them"
            got = repr(config.data.partition)
            refuse("data.partition", rule, got, "evaluation.unseen_clients")
    return experiment

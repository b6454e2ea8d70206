"""Best values of studies: written as YAML, and looked up for sweeps."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.experiment.code import foreign_code
from fedbench.bench.experiment.common_options import Sources
from fedbench.bench.experiment.fields import Fields, show
from fedbench.bench.experiment.resolve import RESERVED, warn_once
from fedbench.bench.method import registry
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.arguments import one_of
from fedbench.bench.system.checksums import yaml_with_checksum
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.tuning.grid import TunedValues

_FIGURES = re.compile(r"[-+]?\d[\d.]*")


def best_file(store: Store, study_id: str) -> Path:
    """Return the file of a study's best values."""
    return store.root / "trials" / study_id / "best.yaml"


def write_best(path: Path, meta: Mapping[str, Any]) -> None:
    """Write a study's best values so that `--config` and `--tuned` take them, with cautions."""
    entries = {"spec": meta["spec"], "preset": meta["preset"], "study": meta["study_id"]}
    entries |= _chosen(meta)
    if meta["cautions"]:
        entries["caution"] = "; ".join(meta["cautions"])
    lines = [f"{key}: {show(value)}\n" for key, value in entries.items()]
    which = "the preset: no best trial can be told" if meta["best"] is None else "the best trial"
    text = f"# {which} by the label-free objective\n" + "".join(lines)
    atomic_write_text(path, yaml_with_checksum(text))


def tuned_specs(store: Store, preset: str) -> list[str]:
    """Return the methods with a finished study of their present code under a preset, sorted."""
    return sorted({meta["spec"] for meta in _current(_ended(store), preset)})


def find_tuned(
    store: Store,
    tuned: str | Path | Sequence[str | Path],
    specs: Sequence[str],
    preset: str,
    dataset: Dataset,
    sources: Sources | None = None,
) -> dict[str, TunedValues]:
    """Look up tuned values for the methods of a sweep on one data set.

    With `auto`, every method must have a finished study of its present code on this data set (its
    content counts, and not where it lies) and preset, and the latest is taken; values found on
    other data must be named. A study or a file that is named serves its method, and the others
    stay untuned. `sources` are those of the sweep, for the command that would make a study.
    """
    if tuned == "auto":
        ended = _ended(store)
        on_data = [meta for meta in ended if meta.get("whole") == dataset.whole]
        latest = {meta["spec"]: meta for meta in _current(on_data, preset)}
        if missing := [spec for spec in specs if spec not in latest]:
            others = [m["study_id"] for m in ended if m["spec"] in missing]
            found = [f"--tuned {latest[spec]['study_id']}" for spec in specs if spec in latest]
            remedies = [f"`{_tune(missing[0], sources or Sources(preset), store)}`", "--methods"]
            remedies += [f"{' '.join(found)}, and the others keep the preset's values"] * bool(
                found
            )
            other = f"a study of other code, data or presets ({', '.join(others)})"
            remedies += [other] * bool(others)
            raise ConfigError(
                f"--tuned auto: no finished study of the present code of {', '.join(missing)} on"
                f" {dataset.name!r} with preset {preset!r} in {str(store.root)!r}; use"
                f" {', or '.join(remedies)}"
            )
        _tell({spec: _cautions(latest[spec]) for spec in specs})
        return {spec: _values_of(latest[spec]) for spec in specs}
    given = [tuned] if isinstance(tuned, str | Path) else tuned
    if not given:
        raise ConfigError("--tuned: is empty; give auto, or studies, or leave it out")
    by_spec: dict[str, TunedValues] = {}
    cautions: dict[str, Sequence[str]] = {}
    for study in given:
        spec, values, texts = _named(store, study)
        if spec not in specs:
            raise ConfigError(
                f"--tuned {study}: is for {spec!r}, which is not in this sweep ({', '.join(specs)})"
            )
        if spec in by_spec:
            first = by_spec[spec].study
            raise ConfigError(f"--tuned: two studies for {spec!r}: {first} and {study}")
        by_spec[spec], cautions[spec] = values, texts
    _tell(cautions)
    return by_spec


def _tell(cautions: Mapping[str, Sequence[str]]) -> None:
    """Log what speaks against tuned values: a line for all methods of which it is one cause."""
    causes: dict[str, dict[str, str]] = {}  # text without figures -> method -> text
    for spec, texts in cautions.items():
        for text in texts:
            causes.setdefault(_FIGURES.sub("", text), {})[spec] = text
    for of in causes.values():
        first = next(iter(of))
        more = (
            f" (figures of {first}; fedbench studies lists all)" if len({*of.values()}) > 1 else ""
        )
        warn_once(f"tuned values of {', '.join(of)}: {of[first]}{more}")


def _tune(spec: str, sources: Sources, store: Store) -> str:
    """Return the command that tunes a method of a sweep on its data, in its store."""
    known = Fields.of(spec).infos
    own = {key: value for key, value in flatten(sources.set or {}, known).items() if key in known}
    words = ["fedbench", "tune", spec, *replace(sources, set=own).words(sources.preset or "demo")]
    if store.root != open_store(None).root:
        words += ["--store", str(store.root)]
    return shlex.join(words)


def _ended(store: Store) -> list[dict[str, Any]]:
    """Return the descriptions of the finished studies, the latest last."""
    metas = map(store.study, store.studies())
    return sorted((m for m in metas if m.get("finished_at")), key=lambda m: m["finished_at"])


def _current(metas: Sequence[dict[str, Any]], preset: str) -> list[dict[str, Any]]:
    """Return the studies under a preset whose method is here, with the code that it has now."""
    known = {*registry.entries()}
    under = [m for m in metas if m["preset"] == preset and {*m["spec"].split("+")} <= known]
    return [meta for meta in under if _has_this_code(meta)]


def _named(store: Store, study: str | Path) -> tuple[str, TunedValues, list[str]]:
    """Return method and values of a study given by id or file, and what speaks against them."""
    if str(study).endswith((".yaml", ".yml")):
        content = load_yaml(Path(study))
        if not isinstance(content.get("spec"), str):
            raise ConfigError(f"{study}: needs a line 'spec:' to be used with --tuned")
        spec = registry.canonical_spec(content["spec"])
        values = {key: value for key, value in content.items() if key not in RESERVED}
        name = str(content.get("study", Path(study).stem))
        found = TunedValues(flatten(values, keep=Fields.of(spec).infos), name)
        return spec, found, [str(content[key]) for key in content if key == "caution"]
    one_of("study", store.studies())(str(study))
    meta = store.study(str(study))
    if not meta.get("finished_at"):
        raise ConfigError(
            f"study {study} has no best trial: repeat its `fedbench tune`, to end it or to see why"
        )
    changed = [] if _has_this_code(meta) else ["code has changed since the study"]
    return meta["spec"], _values_of(meta), [*changed, *_cautions(meta)]


def _has_this_code(meta: Mapping[str, Any]) -> bool:
    """Return whether a study is of this benchmark and of the code that its method has now."""
    then = {name: code for name, code in meta.get("code", {}).items() if ":" not in name}
    same = meta.get("benchmark") == BENCHMARK_VERSION
    return same and then == foreign_code(RunConfig(spec=meta["spec"]))


def _cautions(meta: Mapping[str, Any]) -> list[str]:
    """Return what speaks against the values of a study, and whether they are the preset's."""
    texts: list[str] = list(meta.get("cautions") or ())
    if texts and not meta["best"]:
        texts[0] += ", so that the preset's values are taken"
    return texts


def _values_of(meta: Mapping[str, Any]) -> TunedValues:
    """Return the best values of a finished study."""
    return TunedValues(_chosen(meta), meta["study_id"])


def _chosen(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the best trial, or of the preset where none can be told."""
    return dict((meta["best"] or meta["recommended"])["params"])

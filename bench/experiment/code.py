"""Code of other packages that a run executes, known by a hash of its source.

What ships with fedbench is known by the version of the benchmark instead.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from fedbench.bench.config import RunConfig
from fedbench.bench.config.schema import PROBES, PROTOCOLS
from fedbench.bench.data.sources.base import PLUGINS, SOURCES
from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.evaluation.objectives.scores import objectives
from fedbench.bench.method import registry
from fedbench.bench.nn import backbones
from fedbench.bench.system.method_names import GROUP
from fedbench.bench.system.source import DECLARED, OURS, source_hash


def foreign_code(config: RunConfig) -> dict[str, str]:
    """Return the hashes of code that other packages bring to a configuration, by what they bring.

    Raises:
        PluginError: for a module that has neither source nor functions of Python.
    """
    declared = {name: entry.version for name, entry in registry.entries().items()}
    return {
        name: source_hash(module) if declared.get(name) is None else f"{DECLARED}{declared[name]}"
        for name, module in foreign_modules(config).items()
    }


def foreign_modules(config: RunConfig) -> dict[str, str]:
    """Return the modules that other packages bring to a configuration, by what they bring.

    Keys are names of methods and add-ons, `backbones:NAME`, `probes:NAME`, `objectives:NAME` and
    `datasets:NAME`.
    """
    parts = registry.parse_spec(config.spec)
    modules = {entry.name: entry.cls.__module__ for entry in parts}
    shipped = {name.partition(":")[0] for name in SOURCES}
    for group, names in (  # looking for entry points takes milliseconds
        (backbones.PLUGINS, {config.model.backbone} - {*backbones.BACKBONES}),
        (PROBES, {*config.evaluation.protocols} - {*PROTOCOLS}),
        (PLUGINS, {config.data.name.partition(":")[0]} - shipped),
    ):
        points = (p for name in names for p in entry_points(group=group, name=name))
        modules |= {f"{group.rpartition('.')[2]}:{p.name}": p.module for p in points}
    if further := [name for name in config.evaluation.objectives if name not in SHIPPED]:
        known = objectives()
        found = {name: type(known[name]).__module__ for name in further if name in known}
        modules |= {f"objectives:{name}": module for name, module in found.items()}
    return {
        name: module for name, module in sorted(modules.items()) if module.partition(".")[0] != OURS
    }


def unknown_elsewhere(modules: Mapping[str, str]) -> set[str]:
    """Return the packages of a run's methods that no entry point names, such as `__main__`.

    Other processes load entry points alone, so that they do not know these methods.
    """
    tops = {point.module.partition(".")[0] for point in entry_points(group=GROUP)}
    methods = [module for name, module in modules.items() if ":" not in name]
    return {module.partition(".")[0] for module in methods} - tops


def missing_code(code: Mapping[str, str]) -> list[str]:
    """Return the parts of a run, sorted, that other packages brought and no package here has."""
    known = registry.entries()
    parts = {name: name.rpartition(":") for name in code}
    return sorted(
        name
        for name, (kind, _, entry) in parts.items()
        if not (entry_points(group=f"{OURS}.{kind}", name=entry) if kind else name in known)
    )


def changed_code(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the parts, sorted, whose code differs between two configurations."""
    return sorted({name for name, _ in {*first.items()} ^ {*second.items()}})


def not_recorded(changed: Sequence[str]) -> str:
    """Return what to say of code that differs from a stored run's."""
    return f"the code of {', '.join(changed)} is not the recorded one"


def packages(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the distributions that bring `foreign_modules`, by name."""
    points = list[EntryPoint]()
    for name, module in modules.items():
        kind, colon, entry = name.rpartition(":")
        if colon:
            points += entry_points(group=f"{OURS}.{kind}", name=entry)
        else:
            top = module.partition(".")[0]
            methods = entry_points(group=GROUP)
            points += [p for p in methods if p.module.partition(".")[0] == top]
    dists = [point.dist for point in points if point.dist is not None]
    return {dist.name: dist.version for dist in dists}

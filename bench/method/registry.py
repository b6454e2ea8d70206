"""The registry of methods and add-ons, filled through the entry-point group `fedbench.methods`.

An entry point names a module; importing it runs its `@register` lines. The methods that ship with
fedbench are registered in the same way as methods of other packages.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pydantic import ValidationError

from fedbench.bench.method.base import HOOKS, AddOn, Method
from fedbench.bench.system.errors import ConfigError, PluginError, UnknownNameError, did_you_mean
from fedbench.bench.system.method_names import ALIASES, GROUP, unknown_method
from fedbench.bench.system.packages import broken_package
from fedbench.bench.system.plugins import leave_out, load_error
from fedbench.bench.system.source import OURS, keep_source

M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Registered:
    """One registered class: serves listing, help and construction."""

    name: str
    cls: type[Method]  # its fields are its hyperparameters
    bases: frozenset[str] | None  # for an add-on, the methods it may wrap; None = any
    defaults: Mapping[str, Any]  # of its own fields, as JSON holds them
    version: str | None  # in place of the hash of its source, where another package gives one

    @property
    def is_addon(self) -> bool:
        """True for a class that wraps another method."""
        return issubclass(self.cls, AddOn)

    def fits(self, methods: Iterable[str]) -> list[str]:
        """Return which of some methods an add-on may wrap, sorted."""
        return sorted(name for name in methods if self.bases is None or name in self.bases)

    @property
    def ships(self) -> bool:
        """True for a class of fedbench itself, whose defaults the benchmark's version pins."""
        return self.cls.__module__.partition(".")[0] == OURS

    @property
    def source(self) -> str:
        """The file of the class; empty for one of an interactive session."""
        return getattr(sys.modules[self.cls.__module__], "__file__", None) or ""

    @property
    def description(self) -> str:
        """The class's docstring."""
        return inspect.getdoc(self.cls) or ""

    @property
    def summary(self) -> str:
        """First line of the class's docstring."""
        return self.description.partition("\n")[0]


_ENTRIES: dict[str, Registered] = {}


def register(
    name: str, *, bases: Iterable[str] | None = None, version: str | None = None
) -> Callable[[type[M]], type[M]]:
    """Put a method or an add-on into the registry; a class decorator.

    Args:
        name: lower-case words joined by "-", as specs and stored rows use it.
        bases: for an add-on, the methods that it may wrap; None = any.
        version: raised by the author whenever results change, a default included; stored runs of
            equal version are kept. None = every change of the code makes other runs of them.
    """
    if not isinstance(name, str) or isinstance(bases, str):
        raise PluginError('write it as @register("my-addon", bases=("simclr",))')

    def add(cls: type[M]) -> type[M]:
        if not all(map(str.isalnum, name.split("-"))) or name != name.lower():
            raise PluginError(f"method name {name!r} must be lower-case words joined by '-'")
        if name in _ENTRIES:
            raise PluginError(
                f"method {name!r} is registered twice: by {_ENTRIES[name].cls.__module__} and"
                f" {cls.__module__}; choose another name, or start the session anew"
            )
        if name in ALIASES:
            raise PluginError(f"method name {name!r} is an alias of {ALIASES[name]!r}")
        if twin := next((entry for entry in _ENTRIES.values() if entry.cls is cls), None):
            raise PluginError(f"{cls.__name__} is registered as {twin.name!r}; subclass it instead")
        # 0.93 refuses `after_steps` and takes `encoder`, which is as near to `encode` as 0.92.
        for own in {*vars(cls)} - {*HOOKS}:
            if close := get_close_matches(own, HOOKS, 1, 0.93):
                raise PluginError(f"{name}: {own!r} is no hook; did you mean {close[0]!r}?")
        for field, info in cls.model_fields.items():
            if info.is_required() and field != "base":
                raise PluginError(f"{name}: the field {field!r} has no default; give it one")
        try:
            defaults = cls.model_construct().model_dump(mode="json", exclude={"base"})
        except (TypeError, ValueError) as err:  # a hook is missing, or no file could hold a default
            raise PluginError(f"{name}: {err}") from err
        # The file may be edited before a run asks for the hash of its code.
        keep_source(cls.__module__)
        cls.name = name
        fitting = None if bases is None else frozenset(bases)
        _ENTRIES[name] = Registered(name, cls, fitting, defaults, version)
        return cls

    return add


@cache
def _load_plugins() -> str:
    """Import every plugin once; return why those of other packages failed, for a message, or "".

    The plugins of fedbench come first, so that no other package can take their names.
    """
    points = entry_points(group=GROUP)
    if not points:
        raise ConfigError(
            "no methods are registered: fedbench is not installed in this environment"
            " (from its checkout: pip install -e .)"
        )
    failed = []
    # fedbench's own module is the one whose value is the group's name.
    for point in sorted(points, key=lambda point: (point.value != GROUP, point.name)):
        try:
            point.load()
        except Exception as err:
            if point.value == GROUP:
                raise broken_package(err) or load_error(point, err) from err
            for entry in [*_ENTRIES.values()]:  # what it had registered before it failed
                if f"{entry.cls.__module__}.".startswith(f"{point.module}."):
                    del _ENTRIES[entry.name]
            failed.append(load_error(point, err))
            leave_out(failed[-1])
    return "".join(f"; {error}" for error in failed)


def entries() -> dict[str, Registered]:
    """Return every registered class by name, sorted."""
    _load_plugins()
    return dict(sorted(_ENTRIES.items()))


def parse_spec(spec: str) -> tuple[Registered, ...]:
    """Return the entries of a spec such as `simclr+uv`: the method, then its add-ons in order.

    Names are the same in capitals: `SimCLR+UV`.

    Raises:
        UnknownNameError: for a name that is not registered.
        ConfigError: for an add-on in front, a method after a plus, or a pair that does not fit.
    """
    known = entries()
    methods = [name for name, entry in known.items() if not entry.is_addon]
    addons = [name for name, entry in known.items() if entry.is_addon]
    alias, *further = spec.lower().split("+")
    first, *rest = [*ALIASES.get(alias, alias).split("+"), *further]
    if first not in methods:
        if first in addons:
            raise ConfigError(
                f"{first!r} is an add-on: write METHOD+{first}, for example simclr+{first}"
            )
        raise unknown_method(first, methods, _load_plugins())
    parts = [known[first]]
    for name in rest:
        if name not in addons:
            raise UnknownNameError("add-on", name, addons, _load_plugins())
        bases = known[name].bases
        if bases is not None and first not in bases:
            fitting = ", ".join(known[name].fits(methods)) or "no method that is installed"
            raise ConfigError(f"{name!r} does not go with {first!r} (it goes with {fitting})")
        if rest.count(name) > 1:
            raise ConfigError(f"add-on {name!r} is given twice in {spec!r}")
        parts.append(known[name])
    return tuple(parts)


def canonical_spec(spec: str) -> str:
    """Return the spec with aliases resolved: `fed-simclr` -> `simclr+uv`."""
    return name_of(parse_spec(spec))


def name_of(parts: Iterable[Registered]) -> str:
    """Return the spec of a method and its add-ons."""
    return "+".join(entry.name for entry in parts)


def specs() -> list[str]:
    """Return the specs of every method, alone and with each add-on that declares it as a base."""
    known = entries()
    names = [name for name, entry in known.items() if not entry.is_addon]
    addons = [entry for entry in known.values() if entry.is_addon]
    return sorted(names + [f"{name}+{a.name}" for a in addons for name in a.fits(names)])


def create(spec: str, fields: Mapping[str, Any]) -> Method:
    """Make the method of a spec from its fields; an add-on's fields stand under the add-on's name.

    Raises:
        ConfigError: for a field that does not exist or a value that is out of range.
    """
    return make(parse_spec(spec), fields)


def make(parts: Iterable[Registered], fields: Mapping[str, Any]) -> Method:
    """Make a method and its add-ons from their fields; as `create`."""
    base, *addons = parts
    names = {entry.name for entry in addons}
    own = {key: value for key, value in fields.items() if key not in names}
    method = _construct(base.cls, own, "method")
    for entry in addons:
        extra = fields.get(entry.name, {})
        if not isinstance(extra, Mapping) or "base" in extra:
            raise ConfigError(f"method.{entry.name}: must hold the add-on's fields (got {extra!r})")
        method = _construct(entry.cls, {**extra, "base": method}, f"method.{entry.name}")
    return method


def dump(method: Method) -> dict[str, Any]:
    """Return the fields of a method as `RunConfig.method` holds them; `create` is its inverse."""
    if isinstance(method, AddOn):
        return {**dump(method.base), method.name: method.model_dump(mode="json", exclude={"base"})}
    return method.model_dump(mode="json")


def _construct(cls: type[Method], fields: Mapping[str, Any], where: str) -> Method:
    try:
        return cls.model_validate(dict(fields))
    except ValidationError as err:
        raise ConfigError(describe_validation(err, cls.model_fields, where)) from err


@contextmanager
def of_file(name: str, known: Iterable[str]) -> Iterator[None]:
    """Begin what the block refuses with the name of the file; `known` are its keys."""
    try:
        yield
    except ValidationError as err:
        raise ConfigError(f"{name}: {describe_validation(err, known)}") from err
    except ConfigError as err:
        raise ConfigError(f"{name}: {err}") from err


def describe_validation(err: ValidationError, known: Iterable[str], where: str = "") -> str:
    """Describe the first error of pydantic in one line: name, rule, value, nearest match."""
    first = err.errors(include_url=False)[0]
    name = ".".join([where, *map(str, first["loc"])]).strip(".")
    if first["type"] == "extra_forbidden":
        return f"{name} is not a field{did_you_mean(str(first['loc'][-1]), set(known) - {'base'})}"
    if first["type"] == "missing":
        return f"{name} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name}: {message[0].lower()}{message[1:]} (got {first['input']!r:.200})"

"""Write docs/configuration.md from the fields of the configuration and of every method.

Usage: `python docs/reference.py`; a test compares the page with the fields. The site has the pages
of commands and of Python beside it, which nobody reads in the repository.
"""

import inspect
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

import fedbench
import fedbench.cli
from fedbench.bench.config import RunConfig
from fedbench.bench.config.kinds import kind_text
from fedbench.bench.experiment.fields import show
from fedbench.bench.method import registry

PAGE = Path(__file__).with_name("configuration.md")
_INTRODUCTION = """# Configuration

<!-- Written by docs/reference.py from the fields themselves; do not edit. -->

One vocabulary serves everywhere: `client.lr` in a YAML file (`--config FILE`),
`--set client.lr=0.01` on the command line, `FEDBENCH__CLIENT__LR=0.01` in the environment,
`set={"client.lr": 0.01}` in Python, and the columns of a leaderboard. Later sources win: field
defaults, preset, tuned values, YAML files in order, environment, `--set`, `--seed`.
`fedbench config SPEC` prints the resolved configuration and the source of every value.

YAML files follow the core schema of YAML 1.2: `1e-3` is a number, `off` and `1:30` are text.
"""


def reference() -> str:
    """Text of the page: one table for each section of the configuration and for each method."""
    parts = [_INTRODUCTION]
    plain = {}
    for name, info in RunConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            summary = (info.annotation.__doc__ or "").splitlines()[0]
            parts.append(_section(f"`{name}`", summary, name, info.annotation.model_fields.items()))
        elif name not in ("spec", "method", "code"):  # of these three none is set as a field
            plain[name] = info
    parts.insert(1, _section("Run", "Fields of the whole run.", "", plain.items()))
    parts.append(
        "## `method`\n\nFields of a method are set as `method.FIELD`, those of an add-on as"
        " `method.ADDON.FIELD`.\n"
    )
    for entry in registry.entries().values():
        prefix = f"method.{entry.name}" if entry.is_addon else "method"
        fields = [item for item in entry.cls.model_fields.items() if item[0] != "base"]
        kind = "Add-on" if entry.is_addon else "Method"
        parts.append(_section(f"{kind} `{entry.name}`", entry.summary, prefix, fields, level=3))
    return "\n".join(parts)


def commands() -> str:
    """Text of the page of commands: each with what `--help` prints."""
    parts = ["# All commands and options", "What `--help` prints of each command."]
    for words in _commands(typer.main.get_command(fedbench.cli.app)):
        line = [*words, "--help"]
        result = CliRunner().invoke(fedbench.cli.app, line, prog_name="fedbench", terminal_width=92)
        text = result.output.rstrip()
        parts.append(f"## `fedbench {' '.join(words)}`\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, (*words, name))
        else:
            yield (*words, name)


def python() -> str:
    """Text of the page of Python: the public names, with their signatures and docstrings."""
    parts = ["# Python", "The public names of `fedbench`. Functions first, then what they return."]
    public = {name: getattr(fedbench, name) for name in fedbench.__all__ if name[0] != "_"}
    for name, value in sorted(public.items(), key=lambda item: (item[0][0].isupper(), item[0])):
        call = "" if inspect.isclass(value) else _call(value)
        parts.append(f"## `{name}`\n\n{call}```text\n{inspect.getdoc(value)}\n```")
    return "\n\n".join(parts) + "\n"


def _call(function: object) -> str:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    text = f"fedbench.{getattr(function, '__name__', '')}{inspect.Signature(plain)}"
    return f"```python\n{textwrap.fill(text, 92, subsequent_indent='    ')}\n```\n\n"


def _section(
    title: str,
    summary: str,
    prefix: str,
    fields: Iterable[tuple[str, FieldInfo]],
    *,
    level: int = 2,
) -> str:
    rows = [
        f"| `{f'{prefix}.{name}' if prefix else name}` | {kind_text(info, '`')} |"
        f" {show(info.get_default(call_default_factory=True))} |"
        f" {_escaped(info.description or '')} |"
        for name, info in fields
    ]
    head = f"{'#' * level} {title}\n\n{_escaped(summary)}\n"
    if not rows:
        return head
    return (
        f"{head}\n| name | value | default | meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")

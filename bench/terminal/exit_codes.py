"""Exit codes of the command line, and the lines on stderr that explain them."""

import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from fedbench.bench.system.errors import FedbenchError, exhausted
from fedbench.bench.system.packages import broken_package
from fedbench.bench.system.signals import stop_signals
from fedbench.bench.terminal.console import note, setup_streams

BUG, FAILED, DIFFERENT, UNREADABLE = 1, 4, 4, 5
INTERRUPTED, TERMINATED = 130, 143
_MEANT = {
    "--epochs": ("--set client.local_epochs=VALUE",),
    "--rounds": ("--set federation.num_rounds=VALUE",),
    "--gpus": ("--gpus-per-trial X", "--device cuda"),
    "--gpu": ("--gpus-per-trial X", "--device cuda"),
    "--seeds": ("--seeds-per-trial N", "--seed N"),
    "--data": ("--dataset NAME",),
    "--model": ("--set model.backbone=NAME",),
}
"""Option of other programs -> what to write here; a message names what the command has."""
_COMMANDS = {
    "train": "run METHOD",
    "search": "tune METHOD",
    "prepare": "data prepare NAME",
    "download": "data prepare NAME",
    "rank": "leaderboard",
    "results": "leaderboard",
    "list": "runs",
}
"""Command of other programs -> that of this one."""
_MOST_KEYS = 3
"""Keys that a message about an unknown option names."""


def run_command(command: Callable[[], Any], *, debug: bool = False, continues: bool = False) -> int:
    """Run a command and return its exit code; explain a failure on stderr.

    With `debug` tracebacks are printed; `continues`: after a signal the same command goes on.
    """
    setup_streams(debug=debug)
    terminating = [number for number in stop_signals() if number != signal.SIGINT]
    before = {number: signal.signal(number, _terminate) for number in terminating}
    try:
        code = command() or 0  # Typer turns an interrupt into its exit code
    except SystemExit as stop:
        code = stop.code or 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if debug:
            note(traceback.format_exc().rstrip())
        text, code = _explain(error)
        note(text if debug else f"{text}; --debug shows the traceback" if code == BUG else text)
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code in (INTERRUPTED, TERMINATED):
        state = "interrupted" if code == INTERRUPTED else "terminated"
        note(f"{state}; the same command continues" if continues else state)
    return int(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Exit through every `finally` block; ignore further signals."""
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(TERMINATED)


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message about an error, and its exit code."""
    if hasattr(error, "format_message"):  # wrong use, as Typer reports it
        return _usage(error), int(getattr(error, "exit_code", 2))
    known: FedbenchError | None = exhausted(error) or broken_package(error)
    if known is None and "fedbench.bench.system.plugins" in sys.modules:  # else no plugin has run
        from fedbench.bench.method.blame import error_of_plugin

        known = error_of_plugin(error)
    error = known or error
    if not isinstance(error, FedbenchError):
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return f"error: {message}\nthis is a bug", BUG
    # A signal is no error.
    stopped = error.exit_code in (INTERRUPTED, TERMINATED)
    return f"{error}" if stopped else f"error: {error}", error.exit_code


def _usage(error: Any) -> str:
    """Return Typer's message about wrong use, in the words of other errors."""
    message = " ".join(str(error.format_message()).split())
    message = message.replace("Value error, ", "").replace("Input should be", "must be")
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")  # that is unknown, where there is a context
    if context and option and (meant := _options_called(option, context)):
        message = f"no such option: {option}; write {' or '.join(meant)}"
    elif context and (command := _command_called(message)):
        message = f"{message.partition('.')[0]}; write {context.command_path} {command}"
    text = f"error: {message[:1].lower()}{message[1:]}"
    return text if context is None else f"{text}\nsee {context.command_path} --help"


def _options_called(option: str, context: Any) -> list[str]:
    """Return what the command has for an unknown option: an option, or values: lr, client.lr."""
    parameters = context.command.params
    if option in ("--method", "--methods") and any(each.name == "spec" for each in parameters):
        return [f"the name alone: {context.command_path} simclr"]
    has = {name for each in parameters for name in each.opts}
    meant = _MEANT.get(option) or _MEANT.get(f"{option}s", ())
    if found := [words for words in meant if words.partition(" ")[0] in has]:
        return found
    if "--set" not in has:
        return []
    from fedbench.bench.tuning.explain import fields_by_key

    word, known = option.lstrip("-").replace("-", "_"), fields_by_key()
    last = {key: key.rpartition(".")[2] for key in known}
    alike = [key for key in known if word in (key, last[key], last[key].removeprefix("num_"))]
    alike.sort(key=lambda key: (key.startswith("method."), key.count(".")))
    return [f"--set {key}=VALUE" for key in alike[:_MOST_KEYS]]


def _command_called(message: str) -> str:
    """Return what is meant by a word that is no command: one of other programs, or a method."""
    word = message.partition("No such command '")[2].partition("'")[0]
    if not word or word in _COMMANDS:
        return _COMMANDS.get(word, "")
    from fedbench.bench.system.method_names import ALIASES, shipped

    return f"run {word}" if word.partition("+")[0].lower() in {*shipped(), *ALIASES} else ""

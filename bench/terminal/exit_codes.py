"""Exit codes of the command line, and the lines on stderr that explain them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from fedbench.bench.system.errors import FedbenchError, exhausted
from fedbench.bench.system.signals import stop_signals
from fedbench.bench.terminal.console import note, setup_streams

BUG, FAILED, DIFFERENT, UNREADABLE = 1, 4, 4, 5
INTERRUPTED, TERMINATED = 130, 143
_SIGNALLED = 128
_MOST_KEYS = 3
"""Keys that a message about an unknown option names."""


def in_utf8_mode() -> None:
    """Start this process again in Python's UTF-8 mode unless names of files are UTF-8.

    Under `LC_ALL=C` a path with a letter beyond ASCII, from a YAML file for example, could not even
    be opened. Streams keep the encoding of the terminal.
    """
    if sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    encoding = getattr(sys.stdout, "encoding", "utf-8")  # None if stdout is closed
    environment = {"PYTHONIOENCODING": f"{encoding}:backslashreplace", **os.environ}
    words = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
    os.execve(sys.executable, words, {**environment, "PYTHONUTF8": "1"})


def run_command(command: Callable[[], Any], *, debug: bool = False, continues: bool = False) -> int:
    """Run a command and return its exit code; explain a failure on stderr.

    Args:
        command: returns None or an exit code; may raise anything.
        debug: print tracebacks.
        continues: the same command goes on where a signal ended this one.
    """
    setup_streams(debug=debug)
    terminating = [number for number in stop_signals() if number != signal.SIGINT]
    before = {number: signal.signal(number, _terminate) for number in terminating}
    try:
        code = _code(command(), 0)
        # Typer turns an interrupt into its exit code.
        return _interrupted(code, continues) if code == INTERRUPTED else code
    except SystemExit as stop:
        code = _code(stop.code, BUG)
        return _interrupted(code, continues) if code == TERMINATED else code
    except KeyboardInterrupt:
        return _interrupted(INTERRUPTED, continues)
    except FedbenchError as error:
        stopped = error.exit_code > _SIGNALLED  # by a signal, which is no error
        _show(f"{error}" if stopped else f"error: {error}", debug)
        return error.exit_code
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong use, as Typer reports it
            note(_usage(error))
            return _code(getattr(error, "exit_code", None), 2)
        limit = exhausted(error)
        if limit is not None:
            _show(f"error: {limit}", debug)
            return limit.exit_code
        remedy = "" if debug else "; --debug shows the traceback"
        if "fedbench.bench.method.registry" in sys.modules:  # else no plugin has run
            from fedbench.bench.method.blame import error_of_plugin

            if (foreign := error_of_plugin(error)) is not None:
                _show(f"error: {foreign}{remedy}", debug)
                return foreign.exit_code
        message = " ".join(f"{type(error).__name__}: {error}".split())
        _show(f"error: {message}\nthis is a bug{remedy}", debug)
        return BUG
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Exit through every `finally` block; ignore further signals."""
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(TERMINATED)


def _interrupted(code: int, continues: bool) -> int:
    state = "interrupted" if code == INTERRUPTED else "terminated"
    note(f"{state}; the same command continues" if continues else state)
    return code


def _show(text: str, debug: bool) -> None:
    if debug:
        note(traceback.format_exc().rstrip())
    note(text)


def _usage(error: Any) -> str:
    """Return Typer's message about wrong use, in the words of other errors."""
    message = " ".join(str(error.format_message()).split())
    message = message.replace("Value error, ", "").replace("Input should be", "must be")
    context = getattr(error, "ctx", None)
    if keys := _keys_called(getattr(error, "option_name", ""), context):
        options = " or ".join(f"--set {key}=VALUE" for key in keys)
        message = f"no such option: {error.option_name}; it is a value: {options}"
    text = f"error: {message[:1].lower()}{message[1:]}"
    return text if context is None else f"{text}\nsee {context.command_path} --help"


def _keys_called(option: str, context: Any) -> list[str]:
    """Return the keys that an unknown option of a command with `--set` means: lr, client.lr."""
    if not option or all("--set" not in each.opts for each in context.command.params):
        return []
    from fedbench.bench.tuning.explain import fields_by_key

    word, known = option.lstrip("-").replace("-", "_"), fields_by_key()
    last = {key: key.rpartition(".")[2] for key in known}
    alike = [key for key in known if word in (key, last[key], last[key].removeprefix("num_"))]
    return sorted(alike, key=lambda key: (key.startswith("method."), key.count(".")))[:_MOST_KEYS]


def _code(value: Any, default: int) -> int:
    """Return an exit code: the value if it is a number, 0 for None, else the default."""
    if isinstance(value, int):
        return value
    return 0 if value is None else default

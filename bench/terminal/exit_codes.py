"""From exceptions to exit codes: one line for what went wrong, a traceback only on request."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.terminal.console import note, setup_streams

BUG, INTERRUPTED, TERMINATED = 1, 130, 143
_SIGNALLED = 128


def guarded(command: Callable[[], Any], *, debug: bool = False) -> int:
    """Run a command and return its exit code.

    Args:
        command: returns None or an exit code; may raise anything.
        debug: print tracebacks.
    """
    setup_streams(debug=debug)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _code(command(), 0)
        # Typer turns an interrupt into its exit code.
        return _interrupted(code) if code == INTERRUPTED else code
    except SystemExit as stop:
        code = _code(stop.code, BUG)
        return _interrupted(code) if code == TERMINATED else code
    except KeyboardInterrupt:
        return _interrupted(INTERRUPTED)
    except FedbenchError as error:
        stopped = error.exit_code > _SIGNALLED  # by a signal, which is no error
        _show(debug, f"{error}" if stopped else f"error: {error}")
        return error.exit_code
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong use, as Typer reports it
            note(_usage(error))
            return _code(getattr(error, "exit_code", None), 2)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "" if debug else "; --debug shows the traceback"
        _show(debug, f"error: {what}\nthis is a bug{remedy}")
        return BUG
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave through every `finally`; once is enough."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(TERMINATED)


def _interrupted(code: int) -> int:
    what = "interrupted" if code == INTERRUPTED else "terminated"
    note(f"{what}; the same command continues")
    return code


def _show(debug: bool, text: str) -> None:
    if debug:
        note(traceback.format_exc().rstrip())
    note(text)


def _usage(error: Any) -> str:
    message = " ".join(str(error.format_message()).split())
    message = message.replace("Value error, ", "").replace("Input should be", "must be")
    text = f"error: {message[:1].lower()}{message[1:]}"
    context = getattr(error, "ctx", None)
    return text if context is None else f"{text}\nsee {context.command_path} --help"


def _code(value: Any, other: int) -> int:
    if isinstance(value, int):
        return value
    return 0 if value is None else other

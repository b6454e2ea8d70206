"""What Ray is told before it starts: settings, a folder with a short name, a token."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbench.bench.errors import ResourceError

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # Ray's own setting comes too late where modules are preloaded
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` every worker would rebuild its venv
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours stops the same way, and knows that it did
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # our store is the truth; Tune's snapshots are not read
    "TUNE_FORCE_TRIAL_CLEANUP_S": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
_TOKEN_PATH, _AUTH_MODE = "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
_USUAL_TOKEN = Path(".ray", "auth_token")  # below the home folder; `ray get-auth-token --generate`
_LONGEST_BASE = 40  # AF_UNIX names end at 103 (macOS) or 107 bytes; Ray's own part is about 60
_TOKEN: list[str] = []


def has_token() -> bool:
    """Whether a token is where Ray looks for one."""
    named = {_TOKEN_PATH, "RAY_AUTH_TOKEN"} & set(os.environ)
    return bool(named) or (Path.home() / _USUAL_TOKEN).exists()


def auth_state() -> str:
    """What a cluster may expect of this process, and what it has."""
    mode = os.environ.get(_AUTH_MODE, "not set")
    held = "a" if has_token() else "no"
    return (
        f"a cluster with a token wants {_AUTH_MODE}=token and the same {_TOKEN_PATH} here"
        f" ({_AUTH_MODE} is {mode}, {held} token is at hand)"
    )


def short_folder() -> Path:
    """A folder for temporary files whose name is short enough for the sockets below it."""
    places = [os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), str(Path(os.sep, "tmp"))]
    for place in places:
        if place and len(os.fsencode(place)) <= _LONGEST_BASE and os.access(place, os.W_OK):
            return Path(place)
    raise ResourceError(
        f"the temporary folder {tempfile.gettempdir()!r} is too long for Ray's sockets"
        f" (at most {_LONGEST_BASE} bytes); set TMPDIR to a shorter one"
    )


@contextmanager
def ray_environment(folder: Path, *, private: bool) -> Iterator[None]:
    """Ray's settings for the length of the session; those that are already set stay.

    A private Ray gets a token file of its own: Ray would write one to the home folder otherwise.
    The token is the same for all sessions of a process, since Ray's core keeps the first it reads.
    A cluster is joined with the user's token, if there is one: with an address, Ray itself would
    only look for it when told so.
    """
    names = [*_ENVIRONMENT, _TOKEN_PATH, _AUTH_MODE]
    before = {name: os.environ.get(name) for name in names}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    own_token = private and not {_TOKEN_PATH, _AUTH_MODE, "RAY_AUTH_TOKEN"} & set(os.environ)
    if own_token:
        if not _TOKEN:
            _TOKEN.append(secrets.token_hex(32))
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(_TOKEN[0], encoding="utf-8")
        os.environ[_TOKEN_PATH] = str(token)  # `ray.init` then sets the mode, here and in its core
    elif not private and _AUTH_MODE not in os.environ and has_token():
        os.environ[_AUTH_MODE] = "token"
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old

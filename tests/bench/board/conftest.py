"""Honest rows: three seeds of this project's results, with a commit of a small clone."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbench.bench.board.bundle import Entry
from fedbench.bench.board.copies import known_entries
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.numerics import Platform, as_json

RESULTS = Path(__file__).resolve().parents[3] / "leaderboards" / "results"


class Honest(NamedTuple):
    """Entries of one configuration under seeds 0, 1 and 2, and the clone that has their commit."""

    entries: tuple[Entry, ...]
    checkout: Path


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def honest(checkout: Path) -> Honest:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    sha = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    store = Store(RESULTS)
    rows = [row for row in store.rows() if (row.method, row.grid) == ("simclr", "participation")]
    rows = [row for row in rows if row.participation == 0.5 and row.seed < 3]
    assert [row.seed for row in rows] == [0, 1, 2]
    assert len({row.config_id for row in rows}) == 1
    known = [row.model_copy(update={"git_sha": sha.stdout.strip()}) for row in rows]
    points = [entry.points for entry in known_entries(store, rows)]
    return Honest(tuple(map(Entry, known, points)), checkout)


def elsewhere(entry: Entry) -> Entry:
    """Give a row the record of another numeric platform, which agrees with itself."""
    (record,) = json.loads(entry.row.platform_json or "[]")
    fields = {name: value for name, value in record.items() if name != "name"}
    platform = Platform(**(fields | {"fingerprint": "0" * 64}))
    columns = {"platform": str(platform), "platform_json": as_json([platform.as_dict()])}
    return replace(entry, row=entry.row.model_copy(update=columns))

"""Fixtures of all tests: no file of the user is read or written, one cache of data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads its groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run at most two slow tests at a time, since they start processes themselves.

    They come first, in two groups of whole files. Much of their time is waiting, so that a third
    worker has two cores busy with the rest.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    slow = [item for item in items if item.get_closest_marker("slow")]
    files = list(dict.fromkeys(item.path for item in slow))
    for item in slow:
        item.add_marker(pytest.mark.xdist_group(f"slow-{files.index(item.path) % 2}"))


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point everything that fedbench takes from the environment at an empty folder."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("FEDBENCH"):
                patch.delenv(name)
        patch.setenv("FEDBENCH_DATA_DIR", str(root / "data"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield root

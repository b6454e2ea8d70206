"""Fixtures of all tests: no file of the user is read or written, one cache of data sets."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedbench

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests fake a GPU; a real one would change what others see


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch the garbage collector off while pytest collects, then exempt what exists for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, then those with many: processes take whole files in order.

    Much of the time of slow tests is waiting; the last files of all end at almost the same time.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Derive the table of the committed rows and their marks once, while processes collect tests.

    Otherwise each process that reads these rows does so, in a fresh clone.
    """
    if node.gateway.id == "gw0":
        fedbench.leaderboard(Path(__file__).parents[1] / "leaderboards" / "results")


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
        patch.setenv("no_proxy", "127.0.0.1")  # where tests have servers
        patch.setattr(os, "fsync", lambda descriptor: None)  # no test is about a loss of power
        yield root


@pytest.fixture(scope="session", autouse=True)
def _hangup() -> Iterator[None]:
    """Let the processes of tests take SIGHUP as under a terminal, also where `nohup` runs these."""
    before = signal.getsignal(signal.SIGHUP)
    if before == signal.SIG_IGN:  # what a handler is set for, other programs start with as usual
        signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def _quick_convolutions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Train tiny nets without oneDNN, which is slower for them, unless a test is marked."""
    marked = request.node.get_closest_marker("onednn")
    if marked or request.path.parent.name not in ("contract", "methods", "training"):
        yield
        return
    from fedbench.bench.system.numerics import measure
    from tests.gpu.fake_gpu import without_onednn

    measure("cpu", False)  # kept for all that run in this process
    with without_onednn():
        yield

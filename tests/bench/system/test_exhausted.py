"""Causes of errors that are limits of the system."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from fedbench.bench.system.errors import ResourceError, StoreError, exhausted
from fedbench.bench.system.files import write_error


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (errno.EMFILE, "open files"),
        (errno.ENFILE, "whole system"),
        (errno.EAGAIN, "processes and threads"),
        (errno.ENOMEM, "memory"),
    ],
)
def test_limits_are_named(number: int, limit: str) -> None:
    error = exhausted(OSError(number, os.strerror(number)))
    assert isinstance(error, ResourceError)
    assert limit in str(error)


def test_other_causes_are_not_limits() -> None:
    assert exhausted(OSError(errno.ENOENT, "absent")) is None
    assert exhausted(RuntimeError("other")) is None
    assert exhausted(ValueError("can't start new thread")) is None


def test_causes_that_come_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")  # as CPython says it

    for name in ("_start_new_thread", "_start_joinable_thread"):  # until 3.12, from 3.13
        monkeypatch.setattr(threading, name, refuse, raising=False)
    with pytest.raises(RuntimeError) as caught:
        threading.Thread(target=print).start()
    assert "processes and threads" in str(exhausted(caught.value))


def test_memory_that_torch_does_not_get() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert isinstance(exhausted(caught.value), ResourceError)
    assert isinstance(exhausted(MemoryError()), ResourceError)


def test_a_write_without_descriptors_is_no_problem_of_the_store() -> None:
    error = write_error(Path("file"), OSError(errno.EMFILE, "Too many open files"))
    assert type(error) is ResourceError
    assert type(write_error(Path("file"), OSError(errno.EIO, "broken"))) is StoreError

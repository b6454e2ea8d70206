"""Causes of errors that are limits of the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from fedbench.bench.system.errors import ResourceError, StoreError, exhausted
from fedbench.bench.system.files import write_error


@pytest.mark.parametrize(
    ("cause", "limit"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
        (OSError(errno.ENFILE, "File table overflow"), "whole system"),
        (OSError(errno.EAGAIN, "Resource unavailable"), "processes and threads"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("can't start new thread"), "processes and threads"),  # as CPython says it
        (MemoryError(), "memory"),
    ],
)
def test_limits_are_named(cause: Exception, limit: str) -> None:
    error = exhausted(cause)
    assert isinstance(error, ResourceError)
    assert limit in str(error)


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.ENOENT, "absent"),
        RuntimeError("other"),
        ValueError("can't start new thread"),
        StoreError("can't allocate memory"),
    ],
)
def test_other_causes_are_not_limits(cause: Exception) -> None:
    assert exhausted(cause) is None


def test_memory_that_torch_does_not_get() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert isinstance(exhausted(caught.value), ResourceError)


def test_a_write_without_descriptors_is_no_problem_of_the_store() -> None:
    for number, kind in ((errno.EMFILE, ResourceError), (errno.EIO, StoreError)):
        assert type(write_error(Path("file"), OSError(number, os.strerror(number)))) is kind

"""YAML files of strangers: aliases, sizes, pipes."""

import os
import subprocess
from pathlib import Path

import pytest

from fedbench.bench.config.yaml_files import load_yaml, parse_yaml
from fedbench.bench.system.errors import ConfigError


def test_aliases_that_explode_are_refused() -> None:
    """Nine lists of nine aliases each stand for 9**9 = 387,420,489 values."""
    lines = ["- &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match=r"^f: holds more than 100,000 values"):
        parse_yaml("seed:\n" + "\n".join(lines), "f")


def test_nesting_through_aliases_is_refused() -> None:
    chain = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 1100))
    for text in (chain, "a: &a [*a, *a]", "a: &a {b: *a}", "a: " + "[" * 1100):
        with pytest.raises(ConfigError, match="is nested more than 50 deep"):
            parse_yaml(text, "f")


def test_sizes_and_kinds_of_files(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large.yaml", tmp_path / "pipe.yaml"
    with large.open("wb") as file:
        file.truncate(2**30)
    os.mkfifo(pipe)
    cases = {
        large: "it is larger than 1,048,576 bytes",
        Path("/dev/zero"): "it is larger than 1,048,576 bytes",
        pipe: "it is a pipe that nothing writes to",
        tmp_path: "Is a directory",
    }
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_yaml(tmp_path / "absent.yaml")
    for path, reason in cases.items():
        with pytest.raises(ConfigError, match=rf"{path}: cannot be read \({reason}\)"):
            load_yaml(path)
    for name, data, reason in (
        ("nul", b"a: \0", "unacceptable character"),
        ("utf16", "seed: 1".encode("utf-16"), "is not UTF-8 text"),
        ("latin", b"a: \xe9", "is not UTF-8 text"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=reason):
            load_yaml(tmp_path / name)


def test_a_pipe_is_read_to_its_end_and_once(tmp_path: Path) -> None:
    """The writer of `--config <(command)` may begin long after the reader opened the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    kept = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # else a writer waits, and what it wrote goes
    command = ["bash", "-c", "sleep 0.3; echo a: 1; sleep 0.3; echo b: 2"]
    with pipe.open("w") as out:
        writer = subprocess.Popen(command, stdout=out)
    with writer:
        for _ in range(2):  # once more, as a sweep does
            assert load_yaml(pipe) == {"a": 1, "b": 2}
    os.close(kept)

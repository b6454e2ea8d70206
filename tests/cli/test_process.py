"""The program as a process: imports, help, streams, signals."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .conftest import QUICK, Call


def test_help_is_quick_to_import() -> None:
    code = (
        "import sys, fedbench.cli as c\n"
        "try: c.main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'optuna', 'rich', 'pandas', 'numpy', 'pyarrow'}\n"
        "heavy |= {'fedbench.bench.config', 'fedbench.bench.method'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Example: fedbench run" in done.stdout


def test_readers_of_a_store_load_no_torch_and_planners_no_ray(copy: Path, call: Call) -> None:
    """All in one process: it is a test of imports, not of views."""
    commands = [[name, "--store", str(copy)] for name in ("leaderboard", "studies", "runs")]
    # The first reading of a store derives marks from curves, for which it needs the methods.
    assert call(*commands[0]).code == 0
    code = (
        "import sys, fedbench.cli as c\n"
        f"for words in {commands!r}:\n"
        "    try: c.main(words)\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n"
        "print(sorted({'torch', 'sklearn', 'ray'} & set(sys.modules)), file=sys.stderr)\n"
        "import fedbench.bench.tuning.sweep, fedbench.bench.tuning.tune\n"
        "print('ray' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-2:] == ["[]", "False"]


def test_every_command_has_an_example(call: Call) -> None:
    overview = call("--help").out
    names = [line.split()[0] for line in overview.split("Commands:")[1].splitlines()[1:-2] if line]
    assert {"run", "leaderboard", "partition", "config", "export", "data"} <= set(names)
    for name in names:
        words = ("data", "prepare") if name == "data" else (name,)
        answer = call(*words, "--help")
        assert answer.code == 0
        assert f"Example: fedbench {' '.join(words)}" in answer.out


def test_alone_it_prints_help_and_counts_as_wrong_use(call: Call) -> None:
    answer = call()
    assert (answer.code, answer.out) == (2, "")
    assert "Commands:" in answer.err


def test_version(call: Call) -> None:
    from fedbench import __version__

    assert call("-V") == call("--version") == (0, f"fedbench {__version__}\n", "")


def test_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import fedbench.cli as c\n"
        "c.app.command('flood')(lambda: c.emit('x' * 10**6))\n"  # more than a pipe holds
        "c.main(['flood'])\n"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_full_disk_behind_stdout_is_exit_code_5() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "fedbench", "--version"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr == "error: cannot write to stdout: No space left on device\n"


@pytest.mark.slow
def test_a_run_that_gets_a_signal_says_so_and_continues(tmp_path: Path) -> None:
    """SIGHUP goes to the whole group, as the system does it when a terminal is closed."""
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-m", "fedbench", "run", "supervised", "--store", str(tmp_path / "s")]
    words += ["--set", "federation.num_rounds=1000", "--set", "data.train_subset=200"]
    words += ["--set", "client.batch_size=32", "--device", "cpu", "--workers"]
    first_rounds: list[int] = []
    for signum, workers, begun in (
        (signal.SIGHUP, "2 workers", 3),  # a server and two workers
        (signal.SIGTERM, "1 worker", 0),
    ):
        with subprocess.Popen(
            [*words, workers[0]],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        ) as process:
            assert process.stderr is not None
            assert f"{workers} on cpu" in process.stderr.readline()
            if first_rounds:
                assert process.stderr.readline().startswith("resuming at round ")
            first_rounds.append(int(process.stderr.readline().split()[1].split("/")[0]))
            children = psutil.Process(process.pid).children(recursive=True)
            if signum == signal.SIGHUP:
                os.killpg(process.pid, signum)
            else:
                process.send_signal(signum)
            last = process.stderr.read().splitlines()[-1]
        assert (process.returncode, last) == (143, "terminated; the same command continues")
        assert len(children) == begun
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []
        assert not list((tmp_path / "tmp").iterdir())
        assert not list((tmp_path / "s").rglob("*.tmp"))
    assert first_rounds[0] == 1 < first_rounds[1]


@pytest.mark.parametrize(
    "term", [pytest.param("dumb", marks=pytest.mark.extended), "xterm"]
)  # plain lines, and lines drawn by rich
def test_a_run_outlives_its_terminal(tmp_path: Path, term: str) -> None:
    """Without SIGHUP, as after `disown`, only writing fails: with EIO."""
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "fedbench", "run", "supervised", *QUICK]
    words += ["--set", "evaluation.protocols=[]", "--set", "evaluation.untrained=false"]
    with subprocess.Popen(
        [*words, "--store", str(tmp_path)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": term},
    ) as process:
        os.close(slave)
        assert os.read(master, 1)
        os.close(master)
        assert process.wait(240) == 0
    assert len(list((tmp_path / "rows").iterdir())) == 1


def test_nohup_is_respected() -> None:
    code = (
        "import signal, sys\n"
        "from fedbench.bench.system.signals import stop_signals\n"
        "before = len(stop_signals())\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "print(before, [number.name for number in stop_signals()])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3 ['SIGINT', 'SIGTERM']\n"


def test_a_device_that_is_not_there_creates_nothing(call: Call, tmp_path: Path) -> None:
    places = ("--store", tmp_path / "s", "--data-dir", tmp_path / "d")
    answer = call("run", "supervised", "--device", "cuda", *places)
    assert answer.code == 3
    assert "GPU" in answer.err
    assert not list(tmp_path.iterdir())

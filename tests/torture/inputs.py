"""Generated command lines, files, environments and stores; none is a bug.

Run by hand; pytest runs a short version of it:

    python tests/torture/inputs.py FOLDER [INPUTS [SEED]]

Commands and options come from the command line itself and run through the real entry point. An
input fails if it ends in a traceback, an exit code other than 0, 2, 3, 4 and 5, more than two lines
of error, output of `--json` that is no JSON, a raw control character on the screen, more than ten
minutes or 2 GB, or a refused command that leaves a file in the place of the store.
"""

import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.results.store.row import Row, Trial
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.cli import app, main

SECONDS, MEGABYTES = 600, 2000
ALLOWED = {0, 2, 3, 4, 5}
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TINY = (
    "--set", "federation.num_rounds=1", "--set", "data.train_subset=100",
    "--set", "data.test_subset=40", "--set", "model.width=4",
    "--set", "evaluation.objective_max_examples=40",
)  # fmt: skip
TEXTS = (
    "", " ", "simclr", "simclr+uv", "byol", "auto", "demo", "digits", "linear", "tpe", "0,1",
    ".",
    "-", "--", "nan", "..", "../..", "/", "/dev/null", "~", "~nobody/x", "a\nb", "a\tb",
    "\x1b[31mred",
    "[red]x[/red]", "<script>alert(1)</script>", "a|b", "a\\b", "50%", "$x$", "#", "=1+1", "@x",
    "\u202egnp", "café", "日本", "\ud800", "\udcff", "x" * 5000, "a\0b", "{}", "[", "[" * 3000,
    "simclr+" * 300, "simclr++uv", "+", "hub:", "folder:", "hub:/nowhere", "folder:/dev/null",
    "balanced:100:10",
)  # fmt: skip
STUDY = {
    **{"study_id": "s", "spec": "simclr", "preset": "demo", "trials": 1, "seeds_per_trial": 1},
    **{"finished_at": "2026-01-01", "best": {"params": {"client.lr": 0.1}}},
}
NUMBERS = (
    "0", "1", "2", "3", "10", "0.5", "-1", "-0", "1e3", "1e400", "nan", "inf", "-inf", "", "x",
    "99999999999", "9" * 400, "2147483648", "18446744073709551616", "0x10", "١", "1_0", " 1",
)  # fmt: skip
JSONS = (
    "{}", "[]", "null", "", "{", "1", '"x"', '{"a": NaN}', '{"a": 1e999}', '{"data": 1}',
    '{"data": {"partition": 1}, "client": {}, "evaluation": {}}', "[" * 5000 + "]" * 5000,
    '{"x": ' * 5000 + "1" + "}" * 5000, '{"linear_acc": "0.5"}', '{"a": ' + "9" * 400 + "}",
    '{"\\u001b[31m": 0.5, "<b>|=1+1": 0.25}',
)  # fmt: skip
NAMES = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM", "FEDBENCH_STORE", "FEDBENCH_DATA_DIR")
FIELDS = (
    "client.lr", "client.batch_size", "seed", "data.name", "data.num_clients", "data.alpha",
    "method.temperature", "federation.num_rounds", "evaluation.protocols", "model.width",
    "method.hidden_dim", "method.projection_dim", "model.norm_groups", "data.rotation_bins",
    "evaluation.knn_neighbours", "evaluation.mlp_hidden_dim", "client.local_epochs",
)  # fmt: skip
SLOW = {"doctor", "figures", "reproduce"}
"""Commands that are drawn less often."""


@dataclass
class Outcome:
    """One input, and what came of it."""

    kind: str
    words: list[str]
    code: int | None
    out: str
    err: str
    wrong: list[str] = field(default_factory=list)


class Torture:
    """A store with one run and one study in a folder that is emptied, and a generator of inputs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        shutil.rmtree(folder, ignore_errors=True)
        self.base, self.data = folder / "base", folder / "cache"
        self.base.mkdir(parents=True)
        self.commands = {name: command for name, command in _commands(app)}
        here = ["--store", str(self.base), "--device", "cpu", "--workers", "1"]
        made = self.call(["run", "simclr", *TINY, *here], {"FEDBENCH_DATA_DIR": str(self.data)})
        assert made[0] == 0, made
        self.row = Store(self.base).rows()[0]
        store = Store(self.base)
        trial = {"status": "ok", "seeds": [0], "params": {"client.lr": 0.1}, "seconds": 1.0}
        store.write_trial("s", 0, {**trial, "objective": 0.5, "watched": {"knn_acc": 0.4}})
        store.write_study("s", STUDY)
        yaml = self.call(["config", "simclr", *TINY, "--yaml"], {})
        assert yaml[0] == 0, yaml
        self.config = yaml[1].encode()

    def call(self, words: list[str], env: Mapping[str, str]) -> tuple[int | None, str, str]:
        """Run a command in this process; the code is None if it took too long."""
        raw = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(r, "utf-8", newline="", write_through=True) for r in raw)
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(SECONDS)
        code: int | None = 1
        try:
            with mock.patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
                main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except _Late:
            code = None
        finally:
            signal.alarm(0)
        said, warned = (r.getvalue().decode("utf-8", "surrogateescape") for r in raw)
        return code, said, warned

    def one(self, number: int) -> Outcome:
        """Generate and run one input."""
        place = self.folder / "inputs" / str(number)
        place.mkdir(parents=True)
        make = self.random.choices([self.command_line, self.yaml, self.stored], [5, 2, 4])[0]
        words, store = make(place)
        words = [word.replace("\0", "\x01") for word in words]  # no system passes a NUL
        env = {name: self.random.choice(TEXTS) for name in NAMES if self.random.random() < 0.05}
        env = {name: value for name, value in env.items() if "\0" not in value and _fits(value)}
        env["FEDBENCH_DATA_DIR"] = str(self.data)
        env.setdefault("FEDBENCH_STORE", str(place / "default"))
        before = _listing(store)
        code, out, err = self.call(words, env)
        outcome = Outcome(make.__name__, words, code, out, err)
        outcome.wrong += _faults(outcome, "FORCE_COLOR" in env)
        if code == 2 and _listing(store) != before:
            outcome.wrong.append(f"left behind: {sorted(_listing(store) - before)[:3]}")
        shutil.rmtree(place, ignore_errors=True)
        return outcome

    def command_line(self, place: Path) -> tuple[list[str], Path]:
        """Draw a command with some of its options."""
        names = sorted(self.commands)
        name = self.random.choices(names, [1 if n in SLOW else 4 for n in names])[0]
        command, words = self.commands[name], name.split()
        for parameter in command.params:
            given = self.random.random() < (0.95 if parameter.required else 0.2)
            if parameter.name in {"help", "debug", "address", "store", "data_dir"} or not given:
                continue
            if parameter.param_type_name != "argument":
                words.append(self.random.choice([*parameter.opts, *parameter.secondary_opts]))
            if not getattr(parameter, "is_flag", False):
                words.append(self._value(parameter, place))
        if any(p.name == "dry_run" for p in command.params) and "--dry-run" not in words:
            words.append("--dry-run")
        store = place / "store"
        options = {parameter.name for parameter in command.params}
        if "store" in options:
            if self.random.random() < 0.15:
                store = self._odd_place(place)
            elif self.random.random() < 0.6:
                shutil.copytree(self.base, store)
            words += ["--store", str(store)]
        if "data_dir" in options and self.random.random() < 0.15:
            words += ["--data-dir", str(self._odd_place(place))]
        return words, store

    def yaml(self, place: Path) -> tuple[list[str], Path]:
        """Change a YAML file that is good and give it to the option that takes such files."""
        kind, words = self.random.choice(
            [
                ("config", ["config", "simclr", "--config"]),
                ("config", ["config", "simclr", "--json", "--config"]),
                ("config", ["partition", "--config"]),
                ("config", ["run", "simclr", "--dry-run", "--json", "--config"]),
                ("grids", ["sweep", "--dry-run", "--grid"]),
                ("spaces", ["tune", "simclr", "--dry-run", "--trials", "2", "--space"]),
            ]
        )
        good = {
            "config": [self.config],
            "grids": [installed("grids")["heterogeneity"].read_bytes()],
            "spaces": [installed()["simclr"].read_bytes()],
        }[kind]
        file = place / "given.yaml"
        file.write_bytes(self._damage(self.random.choice(good), lines=True))
        store = place / "store"
        takes_store = words[0] in ("run", "sweep", "tune")
        return [*words, str(file), *(["--store", str(store)] if takes_store else [])], store

    def stored(self, place: Path) -> tuple[list[str], Path]:
        """Change a file of a store, then read the store."""
        store = place / "store"
        shutil.copytree(self.base, store)
        row = next((store / "rows").glob("*.parquet"))
        choice = self.random.randrange(6)
        if choice < 3:
            self._rewrite(row, self.row, Row)
        elif choice == 3:
            trial = Store(self.base).trials("s")[0]
            names = {name: value for name, value in trial.items() if name in Trial.model_fields}
            self._rewrite(store / "trials" / "s" / "0.parquet", Trial(**names), Trial)
        elif choice == 4:
            content = self.random.choice(JSONS)
            if self.random.random() < 0.6:
                key = self.random.choice(sorted(STUDY))
                value: Any = self.random.choice([None, 1, -1, [], {}, "\x1b", "x"])
                content = json_with_checksum({**STUDY, key: value})
            (store / "trials" / "s" / "study.json").write_text(content)
        else:
            files = sorted(
                path for path in store.rglob("*") if path.is_file() and path.stat().st_size
            )
            file = self.random.choice(files)
            file.write_bytes(self._damage(file.read_bytes(), lines=False))
        run_id = self.row.row_id
        words = self.random.choice(
            [
                ["leaderboard"], ["leaderboard", "--json"], ["leaderboard", "--format", "csv"],
                ["leaderboard", "--format", "latex"], ["leaderboard", "--format", "markdown"],
                ["leaderboard", "--reach", "0.3"], ["leaderboard", "--metric", "knn"],
                ["report", str(place / "page.html"), "--json"], ["studies"], ["studies", "s"],
                ["export", run_id, str(place / "e.safetensors"), "--json"], ["verify"],
                ["run", "simclr", *TINY, "--device", "cpu", "--workers", "1", "--json"],
                ["sweep", "--grid", "heterogeneity", "--tuned", "s", "--dry-run"],
                ["sweep", "--grid", "heterogeneity", "--tuned", "auto", "--dry-run"],
                ["tune", "simclr", "--dry-run", "--trials", "2", "--json"],
                ["merge", str(self.base), "--json"],
            ]
        )  # fmt: skip
        return [*words, "--store", str(store)], store

    def _odd_place(self, place: Path) -> Path:
        """Return a path that is hard to use."""
        file, pipe = place / "file", place / "pipe"
        file.touch()
        if not pipe.exists():
            os.mkfifo(pipe)
        names = ("x" * 300, "x/" * 3000, "\udcff", "a\nb", "\x1b[31m", "\u202ex", "new/below")
        return self.random.choice([file, pipe, file / "x", *(place / name for name in names)])

    def _rewrite(self, path: Path, record: Row | Trial, model: type[Any]) -> None:
        """Write a record with one to three other values, past all checks."""
        values: dict[str, Any] = dict(record)
        for name in self.random.sample(sorted(model.model_fields), self.random.randint(1, 3)):
            old = values[name]
            if name.endswith("_json"):
                values[name] = self.random.choice(JSONS)
            elif isinstance(old, dict):
                key = self.random.choice([*old, *TEXTS])
                values[name] = {**old, key: self.random.choice(TEXTS)}
            elif isinstance(old, bool) or name.endswith("_at") or isinstance(old, list):
                continue
            elif isinstance(old, int):
                values[name] = self.random.choice([0, -1, 2**31 - 1])
            elif isinstance(old, float):
                values[name] = self.random.choice([float("nan"), float("inf"), -1.0, 1e300, 0.0])
            elif name not in ("row_id", "study_id"):
                values[name] = self.random.choice(TEXTS).encode("utf-8", "replace").decode()
        try:
            data = encode([model.model_construct(**values)], model)
        except (ValueError, TypeError, OverflowError):  # this column cannot hold it
            return
        path.write_bytes(data)

    def _damage(self, data: bytes, *, lines: bool) -> bytes:
        """Change some bytes of a file, or lines of a text."""
        draw = self.random
        if lines and draw.random() < 0.85:
            rows = data.decode().splitlines()
            for _ in range(draw.choice([0, 1, 1, 1, 2])):
                at = draw.randrange(len(rows))
                key = rows[at].partition(":")[0]
                line = draw.choice(
                    [
                        f"{key}: {draw.choice(TEXTS)}",
                        f"{key}: {draw.choice(NUMBERS)}",
                        f"{key}: {'[' * 2000}",
                        f"{key}: &a [*a, *a]",
                        f"{key}: {'x' * 10_000}",
                        f"{key}: {'9' * 5000}",
                        f"{key}: {{a: 1, a: 2}}",
                        f'{key}: "\\uD800"',
                        f"{key}: !!python/object/apply:os.system [x]",
                        f"  {rows[at]}",
                        *(rows[at], "? x", "- " * 200 + "x", "%TAG ! x", "---", "...", "# x", ""),
                    ]
                )
                rows[at : at + draw.randint(0, 1)] = [line]
            return "\n".join(rows).encode("utf-8", "surrogatepass")
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(changed) or 1)
            changed[at : at + draw.choice([0, 1, 1, 50])] = draw.randbytes(
                draw.choice([0, 1, 1, 9])
            )
        return bytes(changed)

    def _value(self, parameter: Any, place: Path) -> str:
        kind, draw = parameter.type_descriptor.annotation, self.random.random()
        if isinstance(kind, type) and issubclass(kind, StrEnum) and draw < 0.8:
            return str(self.random.choice([*kind]))
        if kind in (int, float):
            return self.random.choice(NUMBERS)
        if parameter.name == "set_" and draw < 0.9:
            key = self.random.choice([*FIELDS, self.random.choice(TEXTS)])
            return f"{key}={self.random.choice([*NUMBERS, *TEXTS])}"
        if parameter.name == "spec" and draw < 0.6:
            return self.random.choice(["simclr", "byol+uv", "orchestra", "supervised", "SimCLR"])
        if parameter.name in ("run_id", "run_ids") and draw < 0.5:
            return self.row.row_id[: self.random.randint(1, 20)]
        if parameter.name in ("out", "keep", "checkpoint_dir") or (
            parameter.name == "file" and draw < 0.7
        ):
            return str(place / self.random.choice(["x.html", "x.safetensors", "café", "a/b.html"]))
        if parameter.name == "grid" and draw < 0.5:
            return self.random.choice([*installed("grids")])
        if parameter.name == "preset" and draw < 0.6:
            return self.random.choice([*installed("presets")])
        if parameter.name == "stores" and draw < 0.6:
            return str(self.base)
        return self.random.choice(TEXTS)


class _Late(BaseException):
    """The command took too long."""


def _late(*_: object) -> None:
    raise _Late


def _commands(program: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, that of its group before it."""
    root: Any = typer.main.get_command(program)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {sub}", each) for sub, each in command.commands.items())
        else:
            yield name, command


def _fits(text: str) -> bool:
    """Return True for a text that the system takes as an argument."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _listing(folder: Path) -> set[str]:
    with suppress(OSError):  # a path that is too long
        return {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return set()


def _faults(outcome: Outcome, coloured: bool) -> list[str]:
    wrong = []
    if outcome.code not in ALLOWED:
        wrong.append("took too long" if outcome.code is None else f"exit code {outcome.code}")
    if "Traceback" in outcome.err or "this is a bug" in outcome.err:
        wrong.append("traceback")
    lines = [line for line in outcome.err.splitlines() if not line.startswith("warning: ")]
    if outcome.code in (2, 3, 5) and len(lines) > 2 and "Usage:" not in outcome.err:
        wrong.append(f"{len(lines)} lines of error")
    if "--json" in outcome.words and outcome.out:
        try:
            outcome.out.encode()
            json.loads(outcome.out)
        except ValueError:
            wrong.append("no JSON")
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEGABYTES * 2**10:
        wrong.append("more than 2 GB")
    if not coloured and CONTROL.search(outcome.out + outcome.err):
        wrong.append("raw control character")
    return wrong


def torture(folder: Path, count: int, seed: int) -> Generator[Outcome, None, None]:
    """Run so many inputs and yield what came of each."""
    run = Torture(folder, seed)
    (folder / "work").mkdir()
    with chdir(folder / "work"):
        for number in range(count):
            yield run.one(number)


def failure(outcome: Outcome) -> str:
    """Return an input that failed, on one line."""
    words = [word if len(word) < 80 else f"{word[:70]}…" for word in outcome.words]
    return f"FAILED {outcome.wrong} {words!r} {outcome.err.strip().splitlines()[:2]!r:.400}"


if __name__ == "__main__":
    began = time.monotonic()
    place, number, seed = (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 2 :])
    results = []
    for result in torture(Path(place).resolve(), int(number), int(seed)):
        results.append(result)
        if result.wrong:
            print(len(results), failure(result), flush=True)
    failed = sum(bool(result.wrong) for result in results)
    seconds = time.monotonic() - began
    print(Counter((result.kind, result.code) for result in results))
    print(f"{len(results)} inputs, {failed} failed, {seconds:.0f} s")
    sys.exit(failed > 0)

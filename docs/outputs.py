"""Run the commands of the pages when the site is built, and show what each prints.

Commands are the lines of `sh` blocks. A `py` block is Python that goes on where the one before it
ended; `python` and `text` blocks are not run. Those of a page run one after the other in a folder
of its own, which begins with `leaderboards/results`, the rows of the repository, and with the
images of `examples()`. In the repository a page has the commands alone.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent
_LOG = logging.getLogger(__name__)
_WIDTH = 84
"""Characters in a line of the output: a page shows so many without a bar to scroll by."""


_SESSION = """
import contextlib, io, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(json.loads(line), names)
    print(json.dumps(out.getvalue()), flush=True)
"""
"""Runs blocks of Python, a line of JSON each, and answers with what they print."""


def examples(folder: Path) -> None:
    """Write `photos/`, colour images of digits as PNG: a folder for each of four classes."""
    images, labels = load_digits(return_X_y=True)
    for index in range(400):
        if labels[index] < 4:
            file = folder / "photos" / f"digit-{labels[index]}" / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = (images[index].reshape(8, 8) * 15).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").resize((32, 32)).save(file)


def with_outputs(page: str, text: str) -> str:
    """Return a page with the output of each command below it; one that fails is a warning."""
    if not re.search(r"^```(?:sh|py)\n", text, re.MULTILINE):
        return text
    with TemporaryDirectory(prefix="fedbench-page-") as name:
        folder = Path(name)
        (folder / "leaderboards").mkdir()
        (folder / "leaderboards" / "results").symlink_to(ROOT / "leaderboards" / "results")
        examples(folder)
        environment = {**os.environ, "COLUMNS": str(_WIDTH), "NO_COLOR": "1"}
        environment["FEDBENCH_DATA_DIR"] = str(folder / "data")
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

        def ran(block: re.Match[str]) -> str:
            if block[1] == "py":
                return f"{block[0]}\n```text\n{_printed(page, block[2], session)}```\n"
            commands = re.split(r"(?<!\\)\n", block[2].rstrip())
            shown = [f"$ {each}\n{_out(page, each, folder, environment)}" for each in commands]
            return "```console\n" + "\n".join(shown) + "```\n"

        with subprocess.Popen(
            [sys.executable, "-c", _SESSION],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as session:
            return re.sub(r"^```(sh|py)\n(.*?)^```\n", ran, text, flags=re.DOTALL | re.MULTILINE)


def _printed(page: str, code: str, session: subprocess.Popen[str]) -> str:
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write(json.dumps(code) + "\n")
    session.stdin.flush()
    answer = session.stdout.readline()
    if not answer:  # its traceback is on stderr
        _LOG.warning("this ends with an exception\n%s", code, location=page)
    return json.loads(answer) if answer else ""


def _out(page: str, command: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        _LOG.warning("%s ends with %s\n%s", command, done.returncode, done.stderr, location=page)
    return done.stdout.replace(str(folder), "~")

"""Run the commands of the pages when the site is built, and show what each prints.

Commands are the lines of `sh` blocks. Those of a page run one after the other in a folder of its
own, which begins with `leaderboards/results`, the rows of the repository, and with the images of
`examples()`. In the repository a page has the commands alone.
"""

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
    if "\n```sh\n" not in text:
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
            commands = re.split(r"(?<!\\)\n", block[1].rstrip())
            shown = [_shown(page, command, folder, environment) for command in commands]
            return "```console\n" + "\n".join(shown) + "```\n"

        return re.sub(r"^```sh\n(.*?)^```\n", ran, text, flags=re.DOTALL | re.MULTILINE)


def _shown(page: str, command: str, folder: Path, environment: Mapping[str, str]) -> str:
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
    return f"$ {command}\n{done.stdout.replace(str(folder), '~')}"

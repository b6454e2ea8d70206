"""Other simulators on W3, each in a separate environment that is made here.

The client code is written here to be fair: images and net are kept per process, the
arithmetic is that of `perf.plain`, views are made by torchvision on PIL images, as the users
of these frameworks do.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from perf.measure import log

FOLDER = Path(__file__).resolve().parent
NAMES = ("flower", "pfl")


class RivalMissingError(Exception):
    """A rival cannot be installed here; pip has said why."""


def environment(name: str, cache: Path) -> Path:
    """Return the interpreter of a rival's virtual environment, made from PyPI on first use.

    Args:
        name: one of `NAMES`; `NAME.txt` beside this file pins what is installed.
        cache: folder of the environments; a few GB each.

    Raises:
        RivalMissingError: the environment cannot be made, for example without a network.
    """
    pins = FOLDER / f"{name}.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:8]
    folder = cache / f"{name}-{digest}-py{sys.version_info[0]}{sys.version_info[1]}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        log(f"installing {name} into {folder}, a few GB and minutes")
        install = [str(python), "-m", "pip", "install", "-qq", "--requirement", str(pins)]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run(install, check=True)
        except subprocess.CalledProcessError as err:
            raise RivalMissingError(
                f"{name} cannot be installed; what pip says stands above"
            ) from err
        complete.touch()
    return python

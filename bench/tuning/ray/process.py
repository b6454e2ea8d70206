"""A trial process of Ray Tune, which runs jobs on any node.

Nodes need no shared disk, but the data set at the driver's path. Checkpoints lie in the store, or
in `--checkpoint-dir`, if the node sees it; else in a folder of the node, where a later attempt on
the same node finds them, and the rounds travel with the last report.
"""

import hashlib
import os
import secrets
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedbench.bench.data.datasets import reopen
from fedbench.bench.system.compute import breaks_cuda
from fedbench.bench.system.errors import DataError, ResourceError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.system.regime import reproducible
from fedbench.bench.system.scratch import temporary_place
from fedbench.bench.tuning.cluster import local_gpus
from fedbench.bench.tuning.job import Job, one_line, work

TOKEN_FILE = "driver-token"
"""File in `cells/` of the driver's folder for checkpoints; who reads the token sees the folder."""
_OF_SHARE = 0.9  # part of a process's share of a GPU's memory that torch may allocate


def driver_token(root: Path) -> str:
    """Return the token by which nodes know that they see the driver's folder for checkpoints."""
    file = root / "cells" / TOKEN_FILE
    if not file.is_file():
        atomic_write_text(file, secrets.token_hex(8))
    return file.read_text(encoding="utf-8")


def settle(job: Job, token: str) -> tuple[Job, bool]:
    """Give a job a folder for checkpoints that this node sees; ResourceError if it lacks something.

    True if they lie on this node alone, so that the history is sent and the folder deleted at last.
    """
    if job.device == "cuda" and not local_gpus():
        raise ResourceError("Ray offers a GPU, torch sees none")
    try:
        reopen(job.experiment.data.path, job.experiment.data.revision)
    except DataError as err:
        raise ResourceError(
            f"it does not have the data set of the driver ({err}); mount the driver's folder of"
            " data sets there under the same path, or run `fedbench data prepare"
            f" {job.experiment.config.data.name}` there"
        ) from err
    root = job.checkpoints or job.store
    file = root / "cells" / TOKEN_FILE
    if file.is_file() and file.read_text(encoding="utf-8") == token:
        return job, False
    if job.checkpoints is not None:
        raise ResourceError(
            f"it does not see the driver's --checkpoint-dir {str(root)!r}; mount it there under the"
            " same path, or leave the option out"
        )
    name = hashlib.sha256(str(job.store).encode()).hexdigest()[:16]
    # The viewers' folders are not seen from here: the driver passes the row.
    return replace(job, checkpoints=_scratch() / name, track=()), True


def _scratch() -> Path:
    """Return the user's folder on this node; refuse one of another user, who could change it."""
    folder = temporary_place() / f"fedbench-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ResourceError(
            f"node {socket.gethostname()}: {str(folder)!r} is another user's; set TMPDIR there"
        )
    return folder


def limit_memory(gpus: float) -> None:
    """Keep a process that shares a GPU within its part of the memory, which Ray only counts.

    A tenth is left for what torch does not count: the context of CUDA and its libraries.
    """
    if 0 < gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(_OF_SHARE * gpus)


def train(config: dict[str, Any]) -> None:
    """Run a `job`, in a cluster with the driver's `token`; the function of Ray Tune's trials.

    After a failure of CUDA, or if this node cannot run the job, Tune ends the process.
    """
    import ray
    from ray import tune

    job, token, local = config["job"], config["token"], False
    job = replace(job, device="cuda" if ray.get_gpu_ids() else "cpu")
    context = ray.get_runtime_context()
    node = context.get_node_id()
    with reproducible(job.device):
        limit_memory(context.get_assigned_resources().get("GPU", 0.0))
        try:
            if token is not None:
                job, local = settle(job, token)
            # The last report is made inside the lock: Tune lets it return only after the driver
            # has written the row, so nobody can find the job free and its row missing.
            status = work(job, tune.report, history=local)
        except ResourceError as err:
            tune.report({"status": "unfit", "node": node, "error": str(err)})
            raise
        except Exception as err:
            if breaks_cuda(err):
                tune.report({"status": "cuda-failed", "node": node, "error": one_line(err)})
            raise
    if local and status not in ("busy", "paused"):
        shutil.rmtree(job.folder, ignore_errors=True)

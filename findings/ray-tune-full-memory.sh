#!/bin/sh
# Guess: where Ray kills a trial since the memory is nearly full, Tune counts that trial as failed
#   (`max_failures=0`, no `fail_fast`) and goes on with the others.
# Version: ray 2.60.0.
# Seen: a trial that is killed at work ends `fit()` with RuntimeError("Caught unexpected exception:
#   1 worker(s) were killed due to the node running low on memory. …"), and the other trials are
#   never started. The same kill between two trials is a trial's failure: Tune expects RayActorError
#   from a dead process, and the monitor's OutOfMemoryError is none.
# Ray counts the memory of all programs of the machine: one of another user ends the experiment.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq "ray[tune]==2.60.0" psutil==7.0.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PY'
import os
import sys
import time

import psutil

memory = psutil.virtual_memory()
limit = (memory.total - memory.available + 2**30) / memory.total  # a gigabyte more than now
os.environ["RAY_memory_usage_threshold"] = str(limit)
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError


def train(config):
    held = []
    while config["large"]:
        held.append(bytearray(os.urandom(1)) * 2**26)
        time.sleep(0.1)
    tune.report({"score": 1})


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
tuner = tune.Tuner(
    train,
    param_space={"large": tune.grid_search([True, False, False])},
    run_config=tune.RunConfig(
        storage_path=os.getcwd(), verbose=0, failure_config=tune.FailureConfig(max_failures=0)
    ),
)
cause = None
try:
    print("trials that ended well:", tuner.fit().num_terminated)
except RuntimeError as err:
    cause = err.__cause__
    print(f"ray {ray.__version__}, fit():", " ".join(str(err).split())[:101])
ray.shutdown()
sys.exit(not isinstance(cause, OutOfMemoryError))
PY

#!/bin/sh
# Guess: a ResultGrid of Ray Tune is a table of its results: get_dataframe() has a row for each
#   trial, with the metrics that get_best_result() and the results themselves know.
# Version: ray 2.60.0.
# Seen: the table is made of the files that Tune's loggers write for each trial. With these switched
#   off (TUNE_DISABLE_AUTO_CALLBACK_LOGGERS=1, which spares a study of thousands of trials two files
#   each) get_best_result("acc", "max") says 0.9 and both results have their metrics, while
#   get_dataframe() is empty, 0 rows and 0 columns, as is each result's metrics_dataframe; no error
#   and no warning. What is read from the table, such as the best or the number of trials, is then
#   of none.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq 'ray[tune]==2.60.0'
"$folder/venv/bin/python" -W ignore - "$folder" <<'PY'
import os
import sys
import tempfile

os.environ["RAY_DEDUP_LOGS"] = "0"
import ray
from ray import tune

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


def trial(config):
    tune.report({"acc": config["x"]})


def results(disabled):
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = disabled
    run = tune.RunConfig(storage_path=tempfile.mkdtemp(dir=sys.argv[1]), verbose=0)
    space = {"x": tune.grid_search([0.1, 0.9])}
    return tune.Tuner(trial, param_space=space, run_config=run).fit()


print(f"ray {ray.__version__}: results, best, shape of the table, of a trial's table")
seen = {}
for disabled in ("0", "1"):
    grid = results(disabled)
    best = grid.get_best_result("acc", "max").metrics["acc"]
    table, own = grid.get_dataframe(), grid[0].metrics_dataframe
    print(f"loggers disabled={disabled}:", len(grid), best, table.shape, own.shape)
    seen[disabled] = len(grid), best, len(table), len(own)
sys.exit(seen != {"0": (2, 0.9, 2, 1), "1": (2, 0.9, 0, 0)})
PY

"""Sweeps through Ray: one that ends, and one that gets a signal to stop."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedbench import open_store

GRID = """
grid: mine
description: one cell
axes: {data.alpha: [1.0]}
methods: [simclr]
seeds: [0]
"""
FOLDER = re.compile(r"/fb-\w+")
SCRIPT = """
import json, sys
from fedbench.bench.tuning.ray import tuner
from fedbench.bench.tuning.sweep import sweep
run_tuner = tuner.run_tuner
def shown(*given):
    results = run_tuner(*given)
    if not given[0].stopping:
        result = results.get_best_result()
        last = result.metrics_dataframe.iloc[-1].to_dict()  # of Tune's own logger
        print(json.dumps([result.config["data.alpha"], result.metrics, last], default=str))
    return results
tuner.run_tuner = shown
try:
    for epochs in (1, 10000):
        fields = {"federation.num_rounds": 1, "client.local_epochs": epochs}
        sweep(sys.argv[1], store=sys.argv[2], concurrency=1, set=fields,
              on_progress=lambda event: print(type(event).__name__, flush=True))
except Exception as err:
    print(err)
    sys.exit(err.exit_code)
"""


@pytest.mark.slow
def test_a_sweep_runs_its_cells_and_a_terminated_one_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GRID)
    # Ray starts workers by a shell, which would take a path with a blank for two words.
    (tmp_path / "a b").symlink_to(sys.prefix)
    python = str(tmp_path / "a b" / Path(sys.executable).relative_to(sys.prefix))
    command = [python, "-c", SCRIPT, str(tmp_path / "mine.yaml"), str(tmp_path / "s")]
    env = {**os.environ, "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "CellsBegan\n"
        while process.stdout.readline() == "CellProgress\n":
            pass  # until the cell is done
        alpha, result, logged = json.loads(process.stdout.readline())
        assert process.stdout.readline() == "CellsBegan\n"
        assert process.stdout.readline() == "CellProgress\n"
        children = psutil.Process(process.pid).children(recursive=True)
        niceness, commands = set[int](), ""
        for child in children:
            with suppress(psutil.Error):  # one that lived for a moment
                niceness.add(child.nice())
                commands += " ".join([*child.cmdline(), ""])
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 143
    said = "interrupted by SIGTERM; 0 of 1 runs are stored, and the same command continues\n"
    assert out.endswith(said)
    assert err == ""
    # Nothing named a folder of the first Ray: the next start of any other command sweeps that.
    assert len(set(FOLDER.findall(commands))) == 1
    assert niceness == {psutil.Process().nice()}
    (row,) = open_store(tmp_path / "s").rows()
    assert (row.status, row.config.client.local_epochs) == ("ok", 1)
    assert (alpha, result["round"], result["status"]) == (1.0, 1, "ok")
    assert result["objective"] == logged["objective"] == row.metrics["objective"]
    assert logged["knn_acc"] == row.metrics["knn_acc"]
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []

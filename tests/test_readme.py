"""Every command and every Python block of the README runs, made cheap through the environment."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
CHEAP = {
    "FEDBENCH__FEDERATION__NUM_ROUNDS": "1",
    "FEDBENCH__DATA__TRAIN_SUBSET": "160",
    "FEDBENCH__DATA__TEST_SUBSET": "40",
    "FEDBENCH__CLIENT__BATCH_SIZE": "4",
    "FEDBENCH__MODEL__WIDTH": "4",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Hub data set of CIFAR-10's shape."""
    root = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    for split, count in (("train", 200), ("test", 50)):
        rows = []
        for _ in range(count):
            buffer = io.BytesIO()
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(buffer, "PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        labels = pa.array(np.arange(count) % 10, pa.int64())
        table = pa.table({"img": pa.array(rows, kind), "label": labels})
        (root / "cifar10").mkdir(exist_ok=True)
        (root / "store").mkdir(exist_ok=True)  # commands that only look must not need one before
        pq.write_table(table, root / "cifar10" / f"{split}-00000-of-00001.parquet")
    return root


def execute(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FEDBENCH")}
    environment |= {
        **CHEAP,
        "FEDBENCH_STORE": str(place / "store"),
        "FEDBENCH_DATA_DIR": str(place / "data"),
        "RAY_ADDRESS": "127.0.0.1:1",  # no cluster, whatever runs on this machine
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, timeout=240
    )


def test_there_are_commands() -> None:
    assert len(commands()) >= 8
    assert len(blocks("python")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("line", commands())
def test_command(line: str, place: Path) -> None:
    words = shlex.split(line.replace("PATH/TO/cifar10", str(place / "cifar10")), comments=True)
    done = execute(words, place)
    needs_a_cluster = "--address" in words or "--gpus-per-trial" in words
    assert done.returncode == (3 if needs_a_cluster else 0), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_python_blocks(place: Path) -> None:
    run, load, plugin = blocks("python")
    done = execute([sys.executable, "-c", run + "\nprint(result.run_id)"], place)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[-1]
    done = execute(["fedbench", "export", run_id, "encoder.safetensors", "--json"], place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"]
    check = "\nassert features.shape == (1, encoder.card['feature_dim']), features.shape"
    done = execute([sys.executable, "-c", load + check], place)
    assert done.returncode == 0, done.stderr
    check = (
        "\nfrom fedbench.bench.method import registry"
        "\nassert registry.create('my-method', {}).needs()"
    )
    (place / "my_method.py").write_text(plugin + check)
    done = execute([sys.executable, "my_method.py"], place)
    assert done.returncode == 0, done.stderr

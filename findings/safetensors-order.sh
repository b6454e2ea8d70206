#!/bin/sh
# Guess: a file of safetensors gives tensors back in one order, that in which they were saved or
#   that of their names, whether it is read from the disk (load_file) or from bytes (load).
# Version: safetensors 0.8.0, numpy 2.4.6.
# Seen: `load` gives another order at each call: of the same bytes, in one process, 20 calls give
#   some 15 orders of four tensors. `load_file` of the same bytes goes by type, the widest first,
#   and by name within a type: norm.steps (int64), head.bias, norm.weight (float32), conv.weight
#   (float16). The keys of `safe_open` are sorted by name. None of them is the order of saving.
# Who flattens clients' weights by `values()` and has one of them from bytes averages other numbers,
# and where the sizes agree nothing fails; an optimizer's state by position goes to other tensors.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq safetensors==0.8.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load, load_file, save

state = {
    "conv.weight": np.array([1, 2], np.float16),
    "norm.weight": np.array([3, 4], np.float32),
    "norm.steps": np.array([5, 6], np.int64),
    "head.bias": np.array([7, 8], np.float32),
}
content = save(state)
orders = {tuple(load(content)) for _ in range(20)}
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "state.safetensors")
    file.write_bytes(content)
    of_file = {tuple(load_file(file)) for _ in range(20)}
print(f"safetensors {safetensors.__version__}: 20 calls of each on the same bytes")
print("saved:    ", *state)
print("load_file:", *(" ".join(each) for each in of_file))
print(f"load:      {len(orders)} orders, among them")
for order in sorted(orders)[:3]:
    print("          ", *order)
by_type = ("norm.steps", "head.bias", "norm.weight", "conv.weight")
sys.exit(not (of_file == {by_type} and len(orders) > 3))
PY

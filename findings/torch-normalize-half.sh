#!/bin/sh
# Guess: torch.nn.functional.normalize turns a row of zeros into zeros in every type, since it
#   divides by at least eps = 1e-12, and cosine_similarity of one is 0 by its eps of 1e-8. float16
#   and bfloat16 differ in digits only.
# Version: torch 2.14.1.
# Seen: in float16 both eps are rounded to 0, and a row of zeros becomes NaN. float32 and bfloat16
#   give zeros. Rows of zeros are what ReLU and pooling give of a dead or an empty input, so that
#   features stored in half precision give NaN similarities where those in float32 give 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import torch
import torch.nn.functional as F

print(f"torch {torch.__version__}: a row of zeros, normalised, and its cosine with ones")
wrong = {}
for kind in (torch.float32, torch.bfloat16, torch.float16):
    zeros = torch.zeros(1, 3, dtype=kind)
    unit, cosine = F.normalize(zeros), F.cosine_similarity(zeros, torch.ones_like(zeros))
    print(kind, unit.tolist(), cosine.tolist())
    wrong[kind] = bool(unit.isnan().all()), bool(cosine.isnan().all())
expected = {torch.float32: (False, False), torch.bfloat16: (False, False)}
sys.exit(wrong != {**expected, torch.float16: (True, True)})
PY

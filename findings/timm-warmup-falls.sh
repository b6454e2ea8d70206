#!/bin/sh
# Guess: CosineLRScheduler(t_initial=10, warmup_t=5) of timm rises to the base rate in five epochs
#   and falls from there along a cosine: the largest rate is the base rate, and no step is a jump.
# Version: timm 1.0.31, torch 2.14.1.
# Seen: the cosine runs from epoch 0, beneath the warmup. The rates for a base of 1 are 0, 0.2, 0.4,
#   0.6, 0.8 and then 0.5: the base rate is never used, and the first step after the warmup is the
#   largest fall of all. warmup_prefix=True makes the cosine begin after the warmup.
# A rate tuned under a scheduler that joins the two is not the rate that is trained with here.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq timm==1.0.31 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import timm
import torch
from timm.scheduler import CosineLRScheduler


def rates(**settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = CosineLRScheduler(optimizer, t_initial=10, warmup_t=5, **settings)
    seen = []
    for epoch in range(10):
        scheduler.step(epoch)
        seen.append(round(optimizer.param_groups[0]["lr"], 3))
    return seen


plain, prefix = rates(), rates(warmup_prefix=True)
print(f"timm {timm.__version__}: rates of ten epochs")
print("warmup_prefix=False", plain)
print("warmup_prefix=True ", prefix)
sys.exit(not (max(plain) == plain[4] == 0.8 and plain[5] == 0.5 and max(prefix) == 1.0))
PY

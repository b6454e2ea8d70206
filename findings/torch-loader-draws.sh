#!/bin/sh
# Guess: a DataLoader without shuffling and without workers draws no random numbers, so that one
#   more pass over test images leaves a seeded training as it was.
# Version: torch 2.14.1.
# Seen: each `iter()` of a loader draws a 64-bit seed for workers, be there none, from the global
#   generator. After one such pass torch.rand, dropout and every shuffling go on with other numbers.
#   A loader with a `generator` of its own draws from that one, and then the global one stays.
# Whoever evaluates more often, or skips evaluation, compares trainings with different noise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import torch
from torch.utils.data import DataLoader

images = torch.arange(6.0)


def after(loader):
    torch.manual_seed(0)
    for _ in loader or ():
        pass
    return torch.rand(1).item()


plain, one = after(None), after(DataLoader(images, batch_size=2))
own = after(DataLoader(images, batch_size=2, generator=torch.Generator()))
print(f"torch {torch.__version__}: the next random number after")
print(f"no pass {plain:.4f}, a pass {one:.4f}, one with a generator of its own {own:.4f}")
sys.exit(not (plain == own != one))
PY

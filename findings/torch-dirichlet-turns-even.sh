#!/bin/sh
# Guess: the smaller the concentration, the closer a Dirichlet draw is to one class: at 0.0001 a
#   client holds one class for certain. torch.distributions and both generators of NumPy agree on
#   that, up to chance, or say that they cannot.
# Version: torch 2.14.1, numpy 2.4.6.
# Seen: of ten classes the largest has a mean share of 0.95 at 0.01, 0.99 at 0.001 and 0.55 at
#   0.0001 in torch: in every second draw all ten Gamma variates are below the smallest double, are
#   raised to it and become ten equal shares of 0.1. The most extreme setting thus makes every
#   second client even. RandomState.dirichlet gives NaN in those draws, without a warning; numpy's
#   Generator has 1.00.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import numpy as np
import torch

torch.manual_seed(0)
old, new = np.random.RandomState(0), np.random.default_rng(0)
print(f"torch {torch.__version__}, numpy {np.__version__}: 1,000 draws over ten classes")
print("concentration: mean largest share in torch, share of even draws there; of NaN in")
print("RandomState; mean largest share in Generator")
for alpha in (1e-2, 1e-3, 1e-4):
    drawn = torch.distributions.Dirichlet(torch.full((10,), alpha)).sample((1000,))
    largest = drawn.amax(dim=1).mean().item()
    even = (drawn.amax(dim=1) < 0.1001).float().mean().item()
    nan = np.isnan(old.dirichlet([alpha] * 10, 1000)).any(axis=1).mean()
    of_new = new.dirichlet([alpha] * 10, 1000).max(axis=1).mean()
    print(f"{alpha:g}: {largest:.2f} {even:.2f}; {nan:.2f}; {of_new:.2f}")
sys.exit(not (largest < 0.7 and even > 0.3 and nan > 0.3 and of_new > 0.99))
PY

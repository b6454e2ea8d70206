#!/bin/sh
# Guess: in one dimension, where there is one direction to project on, POT's sliced Wasserstein
#   distance with p = 2 is its Wasserstein distance with p = 2; and ot.solve and ot.sinkhorn2 with
#   the same cost and regularisation give one value.
# Version: POT 0.9.7.post1, numpy 2.4.6, scipy 1.17.1.
# Seen: wasserstein_1d(p=2) returns the squared distance (9.15), sliced_wasserstein_distance(p=2)
#   the distance (3.02). Of the regularised problem sinkhorn2 returns the cost of the plan alone
#   (10.02), ot.solve(...).value that with the regulariser (10.80); its value_linear is sinkhorn2's.
# Distances between clients' features from two functions of one package are thus off by a square,
# and an order of clients by a mix of both means nothing.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq POT==0.9.7.post1 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import numpy as np
import ot

rng = np.random.default_rng(0)
x, y = rng.standard_normal(200), 2 * rng.standard_normal(200) + 3
whole = float(ot.wasserstein_1d(x, y, p=2))
sliced = float(ot.sliced_wasserstein_distance(x[:, None], y[:, None], p=2, seed=0))
cost = ot.dist(x[:50, None], y[:50, None])
plan, solved = float(ot.sinkhorn2([], [], cost, 1.0)), ot.solve(cost, reg=1.0)
print(f"POT {ot.__version__}")
print(f"wasserstein_1d(p=2) {whole:.4f}, sliced_wasserstein_distance(p=2) {sliced:.4f}")
print(f"sinkhorn2 {plan:.4f}, solve: value {solved.value:.4f}, linear {solved.value_linear:.4f}")
roots = abs(sliced**2 - whole) < 1e-6 * whole and whole > 1.1 * sliced
sys.exit(not (roots and abs(solved.value_linear - plan) < 1e-3 and solved.value > plan + 0.1))
PY

#!/bin/sh
# Guess: a NaN among p-values, of a test that could not be made, is refused by multipletests, or
#   left out: NaN in its place, and the others as if it were not there. All methods treat it alike.
# Version: statsmodels 0.15.0, pingouin 0.7.0 (multicomp).
# Seen: of 0.01, NaN, 0.02, 0.04 statsmodels' Holm counts NaN as a fourth test: 0.04, NaN, 0.06,
#   0.08, where three tests have 0.03, 0.04, 0.04: two of three lines lose their significance. Its
#   fdr_bh makes all four NaN, and yet says that it rejects the first and the third, which the same
#   call without NaN does for all three. pingouin leaves NaN out and has 0.03, NaN, 0.04, 0.04.
# A line of a board with one seed, or without any spread, has such a p-value.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq statsmodels==0.15.0 pingouin==0.7.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
import pingouin
from statsmodels.stats.multitest import multipletests

p = [0.01, np.nan, 0.02, 0.04]
holm = multipletests(p, method="holm")[1]
rejected, fdr = multipletests(p, method="fdr_bh")[:2]
other = pingouin.multicomp(p, method="holm")[1]
print(f"statsmodels {version('statsmodels')}, pingouin {version('pingouin')}: of {p}")
print("Holm, statsmodels:", holm)
print("Holm, pingouin:   ", other)
print("fdr_bh, statsmodels:", fdr, "rejected:", rejected)
third = np.allclose(holm[[0, 2, 3]], [0.04, 0.06, 0.08])
left_out = np.allclose(other[[0, 2, 3]], [0.03, 0.04, 0.04])
sys.exit(not (third and left_out and np.isnan(fdr).all() and rejected.any()))
PY

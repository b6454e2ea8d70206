#!/bin/sh
# Guess: the interquartile mean of rliable is robust at any number of runs: it leaves out a quarter
#   of the scores at either end, and of three seeds, where a quarter is not whole, it weighs the
#   outer two less. One diverged seed of three then moves it little.
# Version: rliable 1.2.0, numpy 2.4.6.
# Seen: a quarter is rounded down to whole scores, which of three is none: aggregate_iqm of 0.9,
#   0.88 and 0 is their mean, 0.593 (0.88 or 0.74 by the guess: the middle one, or outer weights of
#   a quarter). With a fourth seed one is cut at either end: 0.9, 0.88, 0.86 and 0 have 0.87.
# A table of three seeds under the heading IQM is a table of means, and a fourth seed changes not
# the precision alone but what is estimated.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq rliable==1.2.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
from rliable.metrics import aggregate_iqm

print(f"rliable {version('rliable')}: seeds, interquartile mean, mean")
found = []
for seeds in ([0.9, 0.88, 0.0], [0.9, 0.88, 0.86, 0.0]):
    found.append((float(aggregate_iqm(np.array(seeds)[:, None])), float(np.mean(seeds))))
    print(seeds, *(f"{each:.4f}" for each in found[-1]))
sys.exit(not (abs(found[0][0] - found[0][1]) < 1e-12 and abs(found[1][0] - 0.87) < 1e-12))
PY

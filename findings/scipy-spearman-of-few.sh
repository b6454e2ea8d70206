#!/bin/sh
# Guess: scipy.stats.spearmanr and kendalltau, asked about the same few pairs, give p-values that
#   one may compare: four pairs in perfect order have p = 2 / 4! = 0.083, as each of the 24 orders
#   is as likely, and two of them are perfect.
# Version: scipy 1.17.1.
# Seen: kendalltau counts orders and says 0.083; spearmanr, by a t distribution of n - 2 degrees,
#   says exactly 0, even of three pairs (1/3 by counting). Of five pairs with two neighbours swapped
#   it says 0.037, where counting says 0.083: it is significant at 5 % by the one and not by the
#   other. `permutation_test` repairs it.
# Rank correlations of scores and accuracies over four or five encoders are such samples.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from itertools import permutations

import scipy
from scipy.stats import kendalltau, spearmanr


def counted(y):
    x = range(len(y))
    seen = abs(spearmanr(x, y).statistic) - 1e-9
    every = [abs(spearmanr(x, order).statistic) >= seen for order in permutations(y)]
    return sum(every) / len(every)


print(f"scipy {scipy.__version__}: p of spearmanr, of its permutations, of kendalltau")
p = []
for y in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4, 3]):
    x = range(len(y))
    p.append((spearmanr(x, y).pvalue, counted(y), kendalltau(x, y).pvalue))
    print(y, *(f"{each:.4f}" for each in p[-1]))
sys.exit(not (p[0][0] == p[1][0] == 0 and p[1][1] > 0.08 and p[2][0] < 0.05 < p[2][1]))
PY

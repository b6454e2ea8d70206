#!/bin/sh
# Guess: top_k_accuracy_score(y, scores, k=1) is accuracy_score(y, scores.argmax(axis=1)), ties
#   included: one rule decides which of equal scores counts.
# Version: scikit-learn 1.9.1, numpy 2.4.6.
# Seen: argmax takes the first of equal scores, top_k_accuracy_score the last. An encoder that has
#   collapsed, so that all classes score alike, has the accuracy of the first class by the one and
#   of the last by the other: 0.7 and 0.1 here, for classes of 70, 20 and 10 images. Scores of few
#   digits, which low precision and votes of neighbours give, move too: of 1,000 images with scores
#   in steps of 1/2, 0.498 by argmax and 0.515 by top 1, where exact scores have 0.512 by both.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import numpy as np
import sklearn
from sklearn.metrics import accuracy_score, top_k_accuracy_score


def both(y, scores):
    top = top_k_accuracy_score(y, scores, k=1, labels=range(scores.shape[1]))
    return accuracy_score(y, scores.argmax(axis=1)), top


print(f"scikit-learn {sklearn.__version__}: accuracy of argmax, top_k_accuracy_score(k=1)")
collapsed = both(np.repeat([0, 1, 2], [70, 20, 10]), np.full((100, 3), 1 / 3))
print("all scores equal:", *collapsed)
rng = np.random.default_rng(0)
y = rng.integers(0, 10, 1000)
scores = rng.standard_normal((1000, 10)) + 1.5 * np.eye(10)[y]
exact, coarse = both(y, scores), both(y, np.round(scores * 2) / 2)
print("random scores:   ", *exact)
print("in steps of 1/2: ", *coarse)
sys.exit(not (collapsed == (0.7, 0.1) and exact[0] == exact[1] and coarse[0] != coarse[1]))
PY

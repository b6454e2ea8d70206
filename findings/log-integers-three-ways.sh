#!/bin/sh
# Guess: a log-uniform integer from 1 to 4 is one distribution in all tuners, falling from 1 on,
#   since its logarithm is even: random search draws 1 more often than 2, and 2 more often than 3.
# Version: optuna 5.0.0, ConfigSpace 1.2.2, syne-tune 0.16.0.
# Seen: three distributions. Optuna draws 1 in 51 % of trials (its ends reach from 0.5 to 4.5),
#   ConfigSpace in 41 %, syne-tune in 29 % and 2 in 37 %: it rounds a draw from 1 to 4, so that the
#   ends have half their width and the second value is the most frequent.
# A random search over layers, epochs or batch sizes moved from one tuner to another, with the same
# range and the same word, spends half or less than a third of its trials on the smallest value.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq optuna==5.0.0 ConfigSpace==1.2.2 syne-tune==0.16.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
import optuna
from ConfigSpace import ConfigurationSpace, Integer
from syne_tune.config_space import lograndint

COUNT = 4000
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
space = ConfigurationSpace(seed=0)
space.add(Integer("x", (1, 4), log=True))
drawn = {
    "optuna": [study.ask().suggest_int("x", 1, 4, log=True) for _ in range(COUNT)],
    "ConfigSpace": [int(each["x"]) for each in space.sample_configuration(COUNT)],
    "syne-tune": lograndint(1, 4).sample(size=COUNT, random_state=np.random.RandomState(0)),
}
shares = {name: np.bincount(values, minlength=5)[1:] / COUNT for name, values in drawn.items()}
for name, share in shares.items():
    print(f"{name} {version(name)}: 1 to 4 in shares of", *(f"{each:.2f}" for each in share))
ones = [share[0] for share in shares.values()]
apart = ones[0] > ones[1] + 0.05 > ones[2] + 0.1
sys.exit(not (apart and shares["syne-tune"][1] > shares["syne-tune"][0]))
PY

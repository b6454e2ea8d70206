#!/bin/sh
# Guess: a study with a seeded sampler, a deterministic objective and one process is repeated by its
#   seed: the same trials are pruned at the same steps, whatever the study is called.
# Version: optuna 5.0.0.
# Seen: HyperbandPruner chooses a trial's bracket by a hash of the study's name and the trial's
#   number. Two studies with the same 30 suggestions, called a and b, prune other trials and spend
#   other numbers of steps. A study without a name gets a random one, so that it is never repeated.
#   The same name gives the same study.
# A comparison of samplers or settings over studies "with the same seed" then differs in its pruner
# as well, unless all have one name, which one storage does not allow.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq optuna==5.0.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(27):
        trial.report((x - 0.3) ** 2 + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return (x - 0.3) ** 2


def study(name):
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=27)
    sampler = optuna.samplers.RandomSampler(seed=0)
    made = optuna.create_study(study_name=name, sampler=sampler, pruner=pruner)
    made.optimize(objective, n_trials=30)
    steps = [len(trial.intermediate_values) for trial in made.trials]
    print(f"{str(name):5}", "".join("." if each == 27 else "P" for each in steps), sum(steps))
    return [trial.params["x"] for trial in made.trials], steps


print(f"optuna {optuna.__version__}: P is a pruned trial, then the steps of all")
a, again, b, c = study("a"), study("a"), study("b"), study(None)
print("same suggestions:", a[0] == b[0] == c[0])
sys.exit(not (a == again and a[0] == b[0] == c[0] and a[1] != b[1]))
PY

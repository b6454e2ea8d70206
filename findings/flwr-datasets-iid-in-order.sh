#!/bin/sh
# Guess: IidPartitioner deals rows out at random: of a data set that is sorted by label every client
#   gets all classes.
# Version: flwr-datasets 0.6.1, datasets 4.8.5.
# Seen: it cuts the rows in their order into ten blocks. Of 1,000 rows sorted by label client 0
#   holds the first class alone, and so on: the most uneven split there is, under the name of an
#   even one. FederatedDataset hides it by shuffling before it partitions (shuffle=True); whoever
#   sets `partitioner.dataset`, as its documentation shows for data of one's own, has to shuffle.
#   DirichletPartitioner(alpha=1000) on the same rows gives every client all ten classes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq flwr-datasets==0.6.1 datasets==4.8.5
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version

from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

data = Dataset.from_dict({"label": [row // 100 for row in range(1000)]})


def classes(partitioner):
    partitioner.dataset = data
    return [len(set(partitioner.load_partition(client)["label"])) for client in range(10)]


iid, even = classes(IidPartitioner(10)), classes(DirichletPartitioner(10, "label", alpha=1000))
print(f"flwr-datasets {version('flwr-datasets')}: classes of each client")
print("IidPartitioner           ", iid)
print("DirichletPartitioner 1000", even)
sys.exit(not (iid == [1] * 10 and even == [10] * 10))
PY

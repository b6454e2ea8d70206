"""Print delta and c of the encoders in leaderboards/encoders, beside their accuracy.

Usage: `python leaderboards/studies/theory/encoders.py DATASET`, where DATASET has the images of
CIFAR-10: `cifar10`, or `hub:FOLDER`. Exploratory: README.md says what of it may be believed.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch
from scipy import stats
from torch.nn import functional as F

import fedbench
from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.theory import clusters
from fedbench.bench.execution.export import Encoder
from fedbench.bench.experiment.resolve import resolve

ENCODERS = Path(__file__).resolve().parents[2] / "encoders"
PRESETS = ("cross-device-cpu", "laptop")
BOARD = (
    *("aligned", "byol", "featarc", "fedsc", "fedx"),
    *("lejepa", "orchestra", "simclr", "simsiam", "spectral"),
)
"""Methods whose encoders at `laptop` have accuracies on the same 10,000 test images."""
SIGNS = {"anew_delta": -1, "anew_c": 1, "views_apart": -1, "centroid_agrees": 1}
IMAGES = 128  # of each of the 20 clients, as in the protocol `theory`


def quantities(
    encoder: Encoder, views: list[tuple[torch.Tensor, torch.Tensor]]
) -> dict[str, float]:
    """Return the quantities of clusters of features, in the place of projections."""
    with torch.no_grad():
        features = [[F.normalize(encoder.backbone(x), dim=1) for x in pair] for pair in views]
    return clusters([(first, second) for first, second in features], seed=0)


def main() -> None:
    """Print the table, and Kendall's tau by preset."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="where the images of CIFAR-10 are")
    changes = {"data.name": parser.parse_args().dataset, "data.alpha": 0.1}
    setup = resolve("simclr", preset="cross-device-cpu", set=changes).setup
    draws = torch.Generator().manual_seed(0)
    views = []
    for client in range(20):
        held = setup.client_partition.client(client)[:IMAGES]
        raw = torch.from_numpy(setup.images[held])
        first, second = (make_view("simclr-o", raw, draws) for _ in range(2))
        views.append((first, second))
    lines = []
    for preset in PRESETS:
        for file in sorted(ENCODERS.glob(f"*@{preset}.safetensors")):
            encoder = fedbench.load_encoder(file)
            if encoder.card["config"]["spec"] in BOARD:
                found = {"preset": preset, "method": encoder.card["config"]["spec"]}
                found["linear %"] = 100 * encoder.card["metrics"]["linear_acc"]
                new = quantities(encoder, views)
                lines.append(found | {name: new[name] for name in SIGNS})
    table = pd.DataFrame(lines)
    print(table.round(3).to_string(index=False))
    for preset in PRESETS:
        own = table[table["preset"] == preset]
        for name, sign in SIGNS.items():
            tau, p = stats.kendalltau(sign * own[name], own["linear %"])
            print(f"{preset}, {name}: tau {tau:.2f} over {len(own)} encoders, p {p:.2g}")


if __name__ == "__main__":
    main()

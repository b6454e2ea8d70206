"""Export the encoder of each method's median seed into leaderboards/encoders, with a list of them.

Usage: `python leaderboards/encoders.py STORE PRESET`; STORE has the weights of runs whose rows are
in leaderboards/results, as `fedbench sweep` leaves them. Of each method the configuration with the
most seeds at the smallest alpha is taken, of several that which ran first, and of its seeds that
with the median linear accuracy.
"""

import sys
from pathlib import Path

import pandas as pd

import fedbench

FOLDER = Path(__file__).with_name("encoders")
COLUMNS = ("method", "alpha", "config_id", "row_id", "linear_acc", "started_at")
HEAD = """\
# Encoders

`fedbench.load_encoder("simclr@laptop")` reads one of these, which
`python leaderboards/encoders.py STORE PRESET` wrote. Each is of the run in [results](../results/)
that its line names: the seed with the median linear accuracy of its method under this preset.
Those of cross-device-cpu have the published recipe.
Random init has 30.2 % at alpha 0.1 under `laptop`; `supervised@laptop`, whose rate failed there, is
below it. Accuracies of the board's eleven methods and of cross-device-cpu are on 10,000 test
images, those of the others, of the studies before it, on 2,000 (random init 31.2). Clients are
those of `dirichlet-balanced`, with `uv` on simclr, spectral and simsiam those of `hsu`. Methods
with an encoder for each client, `pfedae` and `single-ae`, have none here. Those of `semifed` and
`cbafed` are by probes on a tenth of the labels, where random init has 23 %. Rows and encoders are
under CC0 1.0.

```python
import torch

import fedbench

encoder = fedbench.load_encoder("simclr@laptop")
images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)  # (B, C, H, W), 0 to 255
features = encoder(images)  # (B, encoder.card["feature_dim"])
```

| name | run | data | alpha | seed | linear % | k-NN % | kB |
|---|---|---|---|---|---|---|---|
"""


def chosen(store: Path, preset: str) -> dict[str, str]:
    """Return the run of each method, by method spec."""
    known = {row.row_id for row in fedbench.open_store(FOLDER.with_name("results")).rows()}
    rows = [
        {name: getattr(row, name) for name in COLUMNS}
        for row in fedbench.open_store(store).rows()
        if row.preset == preset and row.status == "ok" and row.row_id in known and row.seed < 100
    ]
    found = {}
    for method, own in pd.DataFrame(rows).groupby("method"):
        own["seeds"] = own.groupby("config_id")["row_id"].transform("size")
        best = own.sort_values(["seeds", "alpha", "started_at"], ascending=[False, True, True])
        seeds = own[own["config_id"] == best["config_id"].iloc[0]].sort_values("linear_acc")
        found[str(method)] = str(seeds["row_id"].iloc[(len(seeds) - 1) // 2])
    return found


def table() -> str:
    """Return the lines of the list, from the cards in the files."""
    lines = []
    for file in sorted(FOLDER.glob("*.safetensors")):
        card = fedbench.load_encoder(file).card
        config, metrics = card["config"], card["metrics"]
        cells = [
            f"`{file.stem}`",
            card["run_id"],
            config["data"]["name"].removeprefix("hub:"),
            f"{config['data']['alpha']:g}",
            str(config["seed"]),
            f"{100 * metrics['linear_acc']:.1f}",
            f"{100 * metrics['knn_acc']:.1f}",
            f"{file.stat().st_size / 1000:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def main(store: Path, preset: str) -> None:
    """Write encoders and list; the cards beside them go, since each file holds its own."""
    for method, run in chosen(store, preset).items():
        file = FOLDER / f"{method}@{preset}.safetensors"
        fedbench.export_encoder(run, file, store=store)
        file.with_suffix(".json").unlink()
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""What each aggregator survives: two of ten clients send something else than they trained.

Usage: `python leaderboards/studies/attackers/attackers.py STORE`, with a folder for the runs; those
that it holds are not repeated. The answer is in README.md.
"""

import sys
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import fedbench
from fedbench.plugin import AddOn, Client, ClientData, Net, register

AGGREGATORS = ("mean", "trimmed-mean", "median", "krum")
SENDS = ("own", "noise", "flipped", "far")
SEEDS = (0, 1, 2)
SETTINGS = {
    "data.name": "fashion-mnist",
    "data.train_subset": 5000,
    "client.local_epochs": 1,
    "federation.num_rounds": 8,
    "federation.participation": 1.0,
    "server.trim_fraction": 0.2,
    "server.num_byzantine": 2,
}


@register("attacked", version="1")
class Attacked(AddOn):
    """Let clients 0 and 1 train as all do, and then send something else."""

    sends: Literal["own", "noise", "flipped", "far"] = Field(
        "own",
        description="their own models; with normal noise of deviation 1; negated; or 1e20 in each"
        " number from client 0, and client 1 negated",
    )

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Overwrite the trained model."""
        for value in net.state_dict().values() if client.id < 2 else ():
            if self.sends == "noise":
                value.add_(torch.randn(value.shape, generator=client.rng))
            elif self.sends == "far" and client.id == 0:
                value.fill_(1e20)
            elif self.sends != "own":
                value.neg_()
        return self.base.after_local(net, data, client)


def cell(aggregator: str, sends: str, store: str) -> str:
    """Return the mean and standard deviation of the linear accuracy over the seeds, in percent."""
    found = []
    for seed in SEEDS:
        given = {"server.aggregator": aggregator, "method.attacked.sends": sends, "seed": seed}
        settings = {**SETTINGS, **given}
        row = fedbench.run("simclr+attacked", preset="laptop", set=settings, store=store).row
        if row.linear_acc is None:
            return row.status
        found.append(100 * row.linear_acc)
    return f"{mean(found):.1f} ± {stdev(found):.1f}"


def main() -> None:
    """Run what is missing, and print the table."""
    print("| aggregator |", *(f"{sends} |" for sends in SENDS))
    print("|---" * (1 + len(SENDS)) + "|")
    for aggregator in AGGREGATORS:
        print(f"| {aggregator} |", *(f"{cell(aggregator, s, sys.argv[1])} |" for s in SENDS))


if __name__ == "__main__":
    main()

"""Features, k-NN and linear probe beside one pass of the encoder; the objective beside tuning."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import reopen
from fedbench.bench.evaluation.features import extract
from fedbench.bench.evaluation.objective import client_statistics
from fedbench.bench.evaluation.probes import fit_logistic, knn_accuracy
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import RoundPlan
from fedbench.bench.nn.clustering import cluster_locally
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup
from perf.context import Context, fresh_folder
from perf.measure import Result, time_calls
from perf.ours import W1, config_of
from perf.plain import Style, make_net


def setup_of(config: RunConfig, dataset: Path, folder: Path) -> Setup:
    """Set up a run on a cached data set."""
    return Experiment(config).on(reopen(dataset)).setup


def probes(context: Context) -> Result:
    """Evaluate 50,000 training and 10,000 test images of 512 features."""
    train, test, dim, some = (200, 40, 32, 4) if context.smoke else (50_000, 10_000, 512, 500)
    result, folder = Result(), context.images(2 * some, 32)
    setup = setup_of(config_of({**W1, "data.num_clients": 1}), folder, fresh_folder(context.cache))
    net, plain = setup.make_net(), make_net(Style("resnet18"))
    net.eval()
    plain.eval()
    images = np.array(setup.images[:some])
    ready = torch.from_numpy(images).float().div_(127.5).sub_(1)

    def encode(batch: Tensor) -> Tensor:
        return setup.method.encode(net, batch)

    def one_pass() -> None:
        with torch.inference_mode():
            for batch in ready.split(500):
                plain["encoder"](batch)

    rng = generator(0, "benchmark")
    classes = torch.randint(10, (train + test,), generator=rng)
    centres = torch.randn(10, dim, generator=rng)
    # Correlated like features of an encoder: a few directions carry most of the variance.
    scales = torch.linspace(0, -4, dim).exp()
    noise = torch.randn(train + test, dim, generator=rng)
    features = ((centres[classes] + 3 * noise) * scales).relu_()
    x, y, queries, truth = features[:train], classes[:train], features[train:], classes[train:]
    with single_thread():
        time_calls(
            result,
            {"features": lambda: extract(encode, images, device="cpu"), "one pass": one_pass},
            context.repeats,
        )
        time_calls(
            result,
            {
                "k-NN": lambda: knn_accuracy(x, y, queries, truth, num_classes=10),
                "linear probe": lambda: fit_logistic(x, y, num_classes=10).predict(queries),
            },
            1,
        )
    scale = (train + test) / some
    for name in ("features", "one pass"):
        result.values[name] = [seconds * scale for seconds in result.values[name]]
    extra = result.values["k-NN"][0] + result.values["linear probe"][0]
    result.values["all"] = [seconds + extra for seconds in result.values["features"]]
    result.divide("all / one pass", "all", "one pass")
    result.notes.append(
        f"one thread; ResNet-18 features timed on {some} images and scaled to {train + test:,};"
        " k-NN and probe once, on synthetic features of full size"
    )
    return result


def objective(context: Context) -> Result:
    """Compare alignment and uniformity of 100 clients with a tuning run of 30 rounds."""
    clients, images = (4, 20) if context.smoke else (100, 100)
    result, folder = Result(), context.images(clients * images)
    place = fresh_folder(context.cache)
    setup = setup_of(config_of({"data.num_clients": clients}), folder, place)
    runner = ClientRunner(setup, torch.device("cpu"), place)
    net = runner.binding.net
    server = runner.binding.server.data.clone()
    upload = torch.empty(runner.layout.upload_size)
    held = [(k, setup.client_partition.client(k).astype(np.int64)) for k in range(clients)]

    def measure() -> None:
        net.eval()
        embed = partial(setup.method.embed, net)
        client_statistics(embed, held, setup.images, setup.config, "cpu")

    def train() -> None:
        for k in range(min(10, clients)):
            runner.run(Task(k, 0, RoundPlan(1)), server, upload)

    memory = F.normalize(torch.randn(128, 128, generator=generator(0, "benchmark")), dim=1)

    def cluster() -> None:
        for _ in range(min(10, clients)):
            cluster_locally(memory, 8, generator(0, "benchmark"))

    calls = {"objective": measure, "ten clients": train, "ten local clusterings": cluster}
    with single_thread():
        time_calls(result, calls, context.repeats)
    result.divide("local clustering / client", "ten local clusterings", "ten clients")
    rounds, cohort = 30, clients // 2
    result.values["tuning run"] = [
        o + rounds * cohort * t / min(10, clients)
        for o, t in zip(result.values["objective"], result.values["ten clients"], strict=True)
    ]
    result.divide("share of a tuning run", "objective", "tuning run")
    result.notes.append(
        f"one thread; tuning run: {rounds} rounds of {cohort} clients and objective"
    )
    return result

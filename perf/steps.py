"""W1 and W2: views, and the training step of ResNet-18 and of the small encoder."""

from itertools import product
from typing import Any

import numpy as np
import torch

from fedbench.bench.data.views.views import make_view
from fedbench.bench.method import RoundPlan
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.training.client import ClientRunner, Task
from perf.context import Context, fresh_folder
from perf.evaluation import setup_of
from perf.measure import Result, interleave, time_calls
from perf.ours import BF16, W1, config_of

ONE_CLIENT = {"data.num_clients": 1, "federation.participation": 1.0}


def views(context: Context) -> Result:
    """Make two views of each image in one thread: fedbench, and torchvision on PIL images."""
    from perf.rivals.client import Views  # torchvision imports the compiler: seconds

    result, size = Result(), 32 if context.smoke else 512
    folder = context.images(size, 32)
    images = torch.from_numpy(np.load(folder / "train_images.npy"))
    few = Views(str(folder), 0, size // 4)

    def ours() -> None:
        rng = generator(0, "benchmark")
        for _ in range(2):
            make_view("simclr-o", images, rng)

    def torchvision() -> None:
        for index in range(len(few)):
            few[index]

    place = fresh_folder(context.cache)
    setup = setup_of(config_of(ONE_CLIENT), folder, place)
    runner = ClientRunner(setup, torch.device("cpu"), place)
    server = runner.binding.server.data.clone()
    upload = torch.empty(runner.layout.upload_size)

    def client() -> None:
        runner.run(Task(0, 0, RoundPlan(1)), server, upload)

    calls = {"fedbench": ours, "torchvision": torchvision, "client": client}
    with single_thread():
        time_calls(result, calls, 2 * context.repeats)
    result.divide("share of a small step", "fedbench", "client")
    for name, count in (("fedbench", len(images)), ("torchvision", len(few))):
        result.values[f"{name} images/s"] = [count / seconds for seconds in result.values[name]]
    result.divide("fedbench / torchvision", "fedbench images/s", "torchvision images/s")
    result.notes.append("images/s counts source images, each of which gives two views")
    return result


def small(context: Context) -> Result:
    """Step ResNet-8 of width 16: a client of fedbench beside the bare loop."""
    return _steps(context, "resnet8", {}, 32 if context.smoke else 480)


def resnet18(context: Context) -> Result:
    """Step ResNet-18 with batch norm."""
    return _steps(context, "resnet18", W1, 16 if context.smoke else 64)


def _steps(context: Context, backbone: str, changes: dict[str, Any], images: int) -> Result:
    result, folder = Result(), context.images(images, 32)
    one_client = {**changes, **ONE_CLIENT}
    contenders = []
    counts = (2,) if context.smoke else (1, 2)
    for threads, style in product(counts, ("", " bf16", " bf16 concat")):
        within, flags = f"{threads} thr", [f"--{word}" for word in style.split()]
        shape = ["--backbone", backbone, "--images", images, *flags]
        contenders.append(context.bare(f"bare{style} {within}", *shape, threads=threads))
        if "concat" not in style:
            options = ["--clients", "--threads", threads]
            given = one_client | (BF16 if style else {})
            name = f"fedbench{style} {within}"
            contenders.append(context.ours(name, folder, *options, changes=given))
    interleave(result, contenders, context.repeats)
    for name in [contender.name for contender in contenders]:
        result.values[f"{name} images/s"] = [images / t for t in result.values[name]]
    for threads in (1, 2):
        within = f"{threads} thr"
        result.divide(f"speed fedbench / bare {within}", f"bare {within}", f"fedbench {within}")
        quick = f"fedbench bf16 {within}"
        result.divide(f"speed fedbench bf16 / fedbench {within}", f"fedbench {within}", quick)
        for arithmetic in ("bf16", "bf16 concat"):
            label = f"speed bare {arithmetic} / bare {within}"
            result.divide(label, f"bare {within}", f"bare {arithmetic} {within}")
    result.notes += [
        f"fedbench: state in and out and views included; {images} images a client",
        "fedbench passes both views at once where no norm mixes them; bare does with concat alone",
    ]
    return result

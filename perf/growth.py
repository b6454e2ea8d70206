"""W4: clients per round, population, rounds."""

from perf.context import Context, dataset_folder
from perf.measure import Result, interleave, log

TINY = {
    "model.width": 4,
    "model.stem_stride": 2,
    "method.hidden_dim": 16,
    "method.projection_dim": 16,
    "client.keep_last_batch": True,
}


def cohorts(context: Context) -> Result:
    """Give the same images to more and more clients of a round; add clients that do nothing."""
    result = Result()
    few, many, images = (2, 4, 64) if context.smoke else (10, 500, 8000)
    folder = context.images(images, 32)
    contenders = []
    for epochs, label in ((1, ""), (0, " idle")):
        for clients in (few, many):
            changes = {
                "data.num_clients": clients,
                "federation.participation": 1.0,
                "client.local_epochs": epochs,
            }
            name = f"{clients} clients{label}"
            contenders.append(context.ours(name, folder, "--workers", 2, changes=changes))
    interleave(result, contenders, context.repeats)
    names = f"{few} clients", f"{many} clients"
    result.divide(f"{names[1]} / {names[0]}, same images", names[1], names[0])
    result.divide("memory of the same", f"{names[1]} MB", f"{names[0]} MB")
    _add_idle(result, few, many)
    return result


def _add_idle(result: Result, few: int, many: int) -> None:
    """Add what a further client costs that does nothing."""
    idle = (result.values[f"{count} clients idle"] for count in (many, few))
    result.values["ms per client that does nothing"] = [
        1000 * (more - less) / (many - few) for more, less in zip(*idle, strict=True)
    ]


def flower_clients(context: Context) -> Result:
    """Measure Flower's clients that do nothing, for comparison."""
    result, folder = Result(), context.images(10_000)
    for count in (10, 100):  # one after the other: each starts a separate Ray
        options = ["--clients", count, "--fraction", 1, "--images", 0]
        flower = context.rival("flower", folder, *options, label=f"{count} clients idle")
        interleave(result, [flower], context.repeats)
    _add_idle(result, 10, 100)
    return result


def population(context: Context) -> Result:
    """Compare a million phones with a hundred clients: partition, drawing, training."""
    result = Result()
    sizes = (4, 1000) if context.smoke else (100, 1_000_000)
    images = 2 * sizes[1]
    folder = dataset_folder(None, context.cache / "data", images, 100, side=4, channels=1)
    contenders = []
    for clients in sizes:
        changes = {
            **TINY,
            "data.num_clients": clients,
            "federation.participation": min(1.0, 10 / clients),
            "client.batch_size": 2,
            "client.local_epochs": 1 if clients == sizes[1] else 0,
            "devices.profile": "phones" if clients == sizes[1] else "uniform",
        }
        contenders.append(context.ours(f"{clients:,} clients", folder, changes=changes))
    interleave(result, contenders, context.repeats)
    for clients in sizes:
        name = f"{clients:,} clients"
        log(f"{name}: {result.values[f'{name} startup s'][0]:.1f} s to the end of round 1")
    result.notes.append(
        f"{images:,} images of 4x4; startup: interpreter, imports, partition, devices, round 1; 10"
        " clients a round"
    )
    return result


def many_rounds(context: Context) -> Result:
    """Run a thousand rounds; compare time and memory at the end with those at the beginning."""
    result, blocks = Result(), 2 if context.smoke else 10
    per_unit = 2 if context.smoke else 100
    changes = {**TINY, "data.num_clients": 10, "federation.participation": 0.5}
    folder = context.images(160, 32)
    options = ["--workers", 2, "--per-unit", per_unit]
    with context.ours("fedbench", folder, *options, changes=changes) as contender:
        for block in range(blocks):
            seconds = contender.unit()["seconds"] / per_unit
            memory = contender.memory() / 1e6
            log(f"rounds to {(block + 1) * per_unit}: {1000 * seconds:.1f} ms, {memory:.0f} MB")
            for name, value in (("s", seconds), ("MB", memory)):
                if block in (0, blocks - 1):
                    where = "first" if block == 0 else "last"
                    result.add(f"{where} {per_unit} rounds {name}", value)
    for name, label in (("s", "seconds per round"), ("MB", "memory")):
        ends = f"last {per_unit} rounds {name}", f"first {per_unit} rounds {name}"
        result.divide(f"{label}, last / first {per_unit} of {blocks * per_unit}", *ends)
    return result

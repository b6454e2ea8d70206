"""W3: a federated round of 50 out of 100 clients with 100 images each."""

from perf.context import Context
from perf.measure import Result, interleave
from perf.ours import BF16
from perf.turn import Contender


def _w3(context: Context) -> tuple[int, int, int]:
    """Return clients in all, clients a round, images of each."""
    return (4, 2, 20) if context.smoke else (100, 50, 100)


def _bare(context: Context, name: str, processes: int, threads: int, *style: str) -> Contender:
    _, cohort, images = _w3(context)
    used = images // 16 * 16  # incomplete batches are left out
    options = ["--clients", cohort, "--images", used, *style]
    return context.bare(name, *options, processes=processes, threads=threads)


def against_bare(context: Context) -> Result:
    """Compare a round with the bare loop: two processes of one thread, one process of two."""
    result, (clients, _, images) = Result(), _w3(context)
    folder, changes = context.images(clients * images), {"data.num_clients": clients}
    contenders = [
        _bare(context, "bare 2x1", 2, 1),
        context.ours("fedbench 2x1", folder, "--workers", 2, changes=changes),
        _bare(context, "tuned bare 2x1", 2, 1, "--concat", "--channels-last"),
        _bare(context, "bare 1x2", 1, 2),
        context.ours("fedbench 1x2", folder, "--threads", 2, changes=changes),
        context.ours("fedbench bf16 2x1", folder, "--workers", 2, changes=changes | BF16),
    ]
    interleave(result, contenders, context.repeats)
    result.divide("fedbench / bare, 2x1", "fedbench 2x1", "bare 2x1")
    result.divide("bare / fedbench, 2x1", "bare 2x1", "fedbench 2x1")
    result.divide("fedbench / tuned bare, 2x1", "fedbench 2x1", "tuned bare 2x1")
    result.divide("fedbench / bare, 1x2", "fedbench 1x2", "bare 1x2")
    result.divide("fedbench 1x2 / 2x1", "fedbench 1x2", "fedbench 2x1")
    result.divide("fedbench fp32 / bf16, 2x1", "fedbench 2x1", "fedbench bf16 2x1")
    result.notes += [
        "2x1: two processes of one thread; 1x2: one process of two threads (not a mode of fedbench,"
        " which always takes one thread per process: patched for this line)",
        "bare: two passes, default memory format; tuned: one pass for both views, channels_last",
    ]
    return result


def against_rivals(context: Context) -> Result:
    """Compare a round with those of Flower and pfl."""
    result, (clients, cohort, images) = Result(), _w3(context)
    folder, changes = context.images(clients * images), {"data.num_clients": clients}
    sizes = ["--clients", clients, "--fraction", cohort / clients, "--images", images]
    contenders = [
        context.ours("fedbench", folder, "--workers", 2, changes=changes),
        context.ours("fedbench bf16", folder, "--workers", 2, changes=changes | BF16),
        context.rival("flower", folder, *sizes),
        context.rival("pfl", folder, *sizes),
    ]
    interleave(result, contenders, context.repeats)
    for rival in ("flower", "pfl"):
        result.divide(f"{rival} / fedbench", rival, "fedbench")
        result.divide(f"{rival} / fedbench bf16", rival, "fedbench bf16")
    result.divide("flower MB / fedbench MB", "flower MB", "fedbench MB")
    result.notes += [
        "fedbench: two workers; Flower: two actors of one CPU; pfl: one process of two threads",
        "rivals' clients are ours: images and net kept per process, views by torchvision on PIL",
    ]
    return result

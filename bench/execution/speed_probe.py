"""What a run's means of speed cost on this processor: measured on the run before it starts."""

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import torch

from fedbench.bench.execution.estimate import Estimator
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import scope, single_thread
from fedbench.bench.training.setup import Setup

_log = logging.getLogger(__name__)
_IMAGES = 16  # of a pass, at most
_SECONDS, _LEAST, _MOST = 0.05, 2, 20
"""Time that passes in either precision may take together, and how many are made at any rate."""
_TOLD = 1.1
"""Ratios above are told: below, a probe so short may be wrong."""


def check_speed(experiment: Experiment, device: torch.device | str, *, begun: bool) -> None:
    """Measure what was asked for speed, on a CPU: tell slow bf16, refuse to compile slower steps.

    Args:
        experiment: the run.
        device: where it trains.
        begun: rows or rounds with these settings are stored, or the run repeats one: a loss is
            told then, not refused.

    Raises:
        ConfigError: if compiled steps take longer, and nothing has begun.
    """
    config, client = experiment.config, experiment.config.client
    rounds = config.federation.num_rounds + experiment.needs.preparatory_rounds
    if torch.device(device).type != "cpu" or not rounds:
        return
    if client.precision == "bf16" and (ratio := bf16_ratio(experiment.setup)) > _TOLD:
        _log.warning(
            "client.precision=bf16: this processor takes %.1f times as long for it as for fp32, on"
            " this run's encoder; leave it out for speed",
            ratio,
        )
    if client.compile:
        ratio, seconds = compile_ratio(experiment)
        said = (
            f"client.compile=true: this processor takes {ratio:.2f} times as long for a step of"
            f" this run as without, after {seconds:.0f} s of compiling"
        )
        if ratio > _TOLD and not begun:
            raise ConfigError(f"{said}; leave it out")
        _log.warning("%s", said)


def compile_ratio(experiment: Experiment) -> tuple[float, float]:
    """Return the time of a compiled step, in steps of the same run that are not, and of compiling.

    Seconds of some steps in either way, as in an estimate. What is compiled is kept on disk, so
    that the run's own processes take it from there.
    """
    estimator = Estimator(["cpu"])
    measured, plain = (
        estimator.step(experiment.varied("client", compile=compiled)) for compiled in (True, False)
    )
    return measured[0] / max(plain[0], 1e-9), measured[1]


def bf16_ratio(setup: Setup, clock: Callable[[], float] = time.process_time) -> float:
    """Return the time of a pass forward and back in bfloat16, in passes in float32.

    Medians over some 50 ms of passes in turns, after one of each that does not count; larger nets
    take as long as six passes do. The run's own net and generators stay as they are.
    """
    net, count = setup.make_net(), min(_IMAGES, setup.config.client.batch_size)
    images = torch.linspace(-1, 1, count * torch.Size(setup.spec.image_shape).numel())
    images = images.reshape(count, *setup.spec.image_shape)

    def seconds(precision: Literal["fp32", "bf16"]) -> float:
        net.precision = precision
        began = clock()
        net(images, "encoder").sum().backward()
        return clock() - began

    with single_thread(), scope(0, "speed-probe"), torch.enable_grad():
        first = seconds("fp32") + seconds("bf16")
        passes = min(_MOST, max(_LEAST, round(_SECONDS / max(first, 1e-9))))
        pairs = [(seconds("fp32"), seconds("bf16")) for _ in range(passes)]
    plain, short = (median(times) for times in zip(*pairs, strict=True))
    return float(short / max(plain, 1e-9))

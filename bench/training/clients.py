"""Where the clients of a run are: the one way by which its server reaches their images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.history import Spread
from fedbench.bench.training.layout import Binding, VectorLayout
from fedbench.bench.training.personal import Private


class Executor(Protocol):
    """Trains the clients of a round, here or in other processes."""

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """Yield each client's report and its upload, (upload_size,), in the order of the tasks.

        `server`, (server_size,), is read only; an upload is valid until the next one is asked for.
        """

    def pre_round(self, tasks: Sequence[Task], server: Tensor) -> Iterator[Trained]:
        """Yield what each client sends before it trains, in the order of the tasks."""
        asking = [replace(task, pre_round=True) for task in tasks]
        return (asked for asked, _ in self.train(asking, server))

    @property
    def summary(self) -> str:
        """What a row says of recorded steps; empty = nothing."""
        return ""

    def close(self) -> None:
        """End what was started; clients that train are not waited for."""
        return


Statistics = Callable[[Binding, tuple[int, int] | None], Spread | None]
"""Measures the net after a round, in eval mode; None if its features are not finite.

With a client's id and the round of its file, its personal tensors are in the net's place of them.
"""


class Clients(Executor, Protocol):
    """All clients of a run, as its server sees them."""

    private: Private

    @property
    def circumstances(self) -> dict[str, str | int]:
        """What a row's environment says of the clients."""
        return {}

    def start(self, layout: VectorLayout) -> None:
        """Get ready to train; not called where no round is left."""

    def statistics(self, binding: Binding, personal: tuple[int, int] | None) -> Spread | None:
        """As `Statistics`."""

    def evaluate(
        self, binding: Binding, personal_rounds: Mapping[int, int], rounds: int, *, first: bool
    ) -> dict[str, float]:
        """Return the metrics of the net, after so many `rounds`, or before the `first` one.

        `personal_rounds` has the round of each client's file that counts.
        """

    def online(self, binding: Binding) -> dict[str, float]:
        """Return the metrics that are watched after each round."""

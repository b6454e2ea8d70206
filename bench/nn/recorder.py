"""Work that a GPU repeats without Python between its kernels."""

from collections.abc import Callable

import torch


class Recorder:
    """Runs pieces of work that are repeated often; `recorded` makes CUDA graphs of them.

    A piece runs plainly the first time, when libraries choose their kernels, and is recorded the
    second time. It may read and write tensors only, at the same addresses each time.
    """

    def __init__(self, device: torch.device, *, recorded: bool) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device) if recorded else None
        self._graphs: dict[str, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, name: str, work: Callable[[], None]) -> None:
        """Do a piece of work, which is the same for every call under its name."""
        if (stream := self._stream) is None:
            work()
        elif name not in self._graphs:
            self._graphs[name], current = None, torch.cuda.current_stream(self._device)
            stream.wait_stream(current)  # libraries choose, and take memory, for each stream
            with torch.cuda.stream(stream):
                work()
            current.wait_stream(stream)
        else:
            graph = self._graphs[name] or self._record(stream, work)
            self._graphs[name] = graph
            graph.replay()

    def _record(self, stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # A recording that fails leaves its stream the current one: here the caller gets its back.
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            work()
        return graph

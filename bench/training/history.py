"""The record of every round, appended to a file as the run goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import append_line, atomic_write_text


@dataclass(frozen=True)
class RoundRecord:
    """What one round did.

    Attributes:
        round_index: from 0.
        loss: mean over the cohort's steps; None if there were none.
        parts: means of the logged loss terms, and what the server logged.
        cohort_size: clients that took part.
        idle_clients: those that made no step (too few images for a batch).
        num_steps: optimizer steps of all of them.
        bytes_up: from clients, this round.
        bytes_down: to clients, this round.
        std_ratio: spread of features on a fixed probe; 1 = isotropic, 0 = collapsed.
        effective_rank: of the same features.
        projection_std_ratio: spread of the projections.
        collapsed: what the detector says of the two.
        metrics: evaluations made after this round.
        seconds: wall-clock time.
        traffic: every message of the round, `{direction: {group: {messages, numbers, bytes,
            revealing, smallest}}}`, as `bench.training.ledger` counts them.
    """

    round_index: int
    loss: float | None
    parts: Mapping[str, float]
    cohort_size: int
    idle_clients: int
    num_steps: int
    bytes_up: int
    bytes_down: int
    std_ratio: float
    effective_rank: float
    projection_std_ratio: float
    collapsed: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    traffic: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class History:
    """One JSON object a line in `history.jsonl`; its end may be ahead of the last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"

    def rewind(self, rounds_done: int) -> list[RoundRecord]:
        """Drop what lies behind the checkpoint, torn last line included; return the rest.

        Raises:
            DataError: if rounds that the checkpoint has are not there; no run leaves that behind.
        """
        lines = self._lines()
        kept = lines[:rounds_done]
        try:
            records = [RoundRecord(**json.loads(line)) for line in kept]
        except (ValueError, TypeError):
            records = []
        if len(records) < rounds_done:
            raise DataError(
                f"{str(self._path)!r} lacks rounds of its checkpoint, which has {rounds_done}: it"
                " was altered; delete the folder to run this from the start"
            )
        if len(lines) != rounds_done:
            atomic_write_text(self._path, "".join(f"{line}\n" for line in kept))
        return records

    def read(self) -> list[RoundRecord]:
        """All rounds; only for a run that has ended."""
        return [RoundRecord(**json.loads(line)) for line in self._lines()]

    def append(self, record: RoundRecord) -> None:
        """Add one round."""
        append_line(self._path, json.dumps(record.as_dict()))

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

"""Record of every round, appended to a file during the run."""

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
    """Summary of one round.

    Attributes:
        round_index: from 0.
        loss: mean over the cohort's steps; None if there were none.
        parts: means of the logged loss terms, and values that the server logged.
        cohort_size: clients that took part.
        idle_clients: those that made no step (too few images for a batch).
        num_steps: optimizer steps of all of them.
        bytes_up: from clients, this round.
        bytes_down: to clients, this round.
        std_ratio: spread of features on a fixed probe; 1 = isotropic, 0 = collapsed.
        effective_rank: of the same features.
        projection_std_ratio: spread of the projections.
        collapsed: verdict of the detector on both.
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
        """Return the record as JSON values."""
        return asdict(self)


class History:
    """File `history.jsonl` with one JSON object per round; may be ahead of the last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"

    def rewind(self, rounds_done: int) -> list[RoundRecord]:
        """Drop the rounds after the checkpoint, torn last line included, and return the others.

        Raises:
            DataError: if rounds of the checkpoint are missing, which no interruption causes.
        """
        text = self._text()
        lines = text.split("\n")[:-1][:rounds_done]
        try:
            records = [RoundRecord(**json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            records = []
        if len(records) < rounds_done:
            raise DataError(
                f"{str(self._path)!r} lacks rounds of its checkpoint, which has {rounds_done}: it"
                " was altered; delete the folder to run this from the start"
            )
        whole = "".join(f"{line}\n" for line in lines)
        if text != whole:
            atomic_write_text(self._path, whole)
        return records

    def read(self) -> list[RoundRecord]:
        """Return all rounds but a torn last one, which a killed process may leave."""
        return [RoundRecord(**json.loads(line)) for line in self._text().split("\n")[:-1]]

    def append(self, record: RoundRecord) -> None:
        """Append one round."""
        append_line(self._path, json.dumps(record.as_dict()))

    def _text(self) -> str:
        return self._path.read_text(encoding="utf-8") if self._path.exists() else ""

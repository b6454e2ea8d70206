"""Record of every round, appended to a file during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import append_line, atomic_write_bytes


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
        drift: of the clients' updates, as `Drift.values` has it; {} with client-level privacy.
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
    drift: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class ClientDone:
    """A client has ended its part of a round.

    Attributes:
        round_index: from 0.
        done: clients of the round that have ended, this one included.
        cohort_size: clients of the round.
        num_images: images that it trained on, each as often as it was seen.
    """

    round_index: int
    done: int
    cohort_size: int
    num_images: int


class History:
    """File `history.jsonl`: a checked line per round; may be ahead of the last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"

    def rewind(self, rounds_done: int) -> list[RoundRecord]:
        """Drop the rounds after the checkpoint, torn last line included, and return the others.

        Raises:
            DataError: if rounds of the checkpoint are missing or altered, which no interruption
                causes.
        """
        content = self._content()
        lines = content.split(b"\n")[:-1][:rounds_done]
        records = self._records(lines, rounds_done)
        whole = b"".join(line + b"\n" for line in lines)
        if content != whole:
            atomic_write_bytes(self._path, whole)
        return records

    def read(self, at_least: int = 0) -> list[RoundRecord]:
        """Return all rounds but a torn last one, which a killed process may leave.

        Args:
            at_least: number of rounds that must be there.

        Raises:
            DataError: if a round is altered, or rounds are missing.
        """
        return self._records(self._content().split(b"\n")[:-1], at_least)

    def append(self, record: RoundRecord, *, sync: bool = True) -> None:
        """Append one round; with `sync` the disk has it and those before when this returns."""
        append_line(self._path, json_with_checksum(record.as_dict()), sync=sync)

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Replace all rounds at once.

        Raises:
            StoreError: as `atomic_write_bytes`.
        """
        lines = (json_with_checksum(record.as_dict()).encode() + b"\n" for record in records)
        atomic_write_bytes(self._path, b"".join(lines))

    def _records(self, lines: Sequence[bytes], at_least: int) -> list[RoundRecord]:
        records: list[RoundRecord] = []
        problem = ""
        for line in lines:
            try:
                record = RoundRecord(**parse_json(line))
            except (ValueError, TypeError) as err:
                problem = f"its line {len(records) + 1} is altered ({err})"
                break
            if record.round_index != len(records):
                problem = f"its line {len(records) + 1} is of round {record.round_index + 1}"
                break
            records.append(record)
        if not problem and len(records) < at_least:
            problem = f"it has {len(records)} rounds and the run at least {at_least}"
        if problem:
            raise DataError(
                f"{str(self._path)!r}: {problem}; delete the folder to run this from the start"
            )
        return records

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as err:
            raise DataError(f"cannot read {str(self._path)!r}: {err.strerror or err}") from err

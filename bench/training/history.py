"""Record of every round, appended to a file during the run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import append_line, atomic_write_bytes


class Spread(NamedTuple):
    """How far apart features and projections of different images are; fields of `RoundRecord`."""

    std_ratio: float  # of features on a fixed probe; 1 = isotropic, 0 = collapsed
    effective_rank: float  # of the same features
    projection_std_ratio: float  # of the projections
    collapsed: bool  # verdict of the detector on both


@dataclass(frozen=True)
class RoundRecord:
    """Summary of one round."""

    round_index: int  # from 0
    loss: float | None  # mean over the cohort's steps; None if there were none
    parts: Mapping[str, float]  # means of the logged loss terms, and values that the server logged
    cohort_size: int  # clients that took part, and whose uploads count
    idle_clients: int  # those that made no step (too few images for a batch)
    num_steps: int  # optimizer steps of all of them
    bytes_up: int  # from clients, this round
    bytes_down: int  # to clients, this round
    std_ratio: float  # this and the next three as in `Spread`
    effective_rank: float
    projection_std_ratio: float
    collapsed: bool
    metrics: Mapping[str, float] = field(default_factory=dict)  # evaluations made after this round
    seconds: float = 0.0  # wall-clock time
    # Every message of the round, `{direction: {group: {messages, numbers, bytes, revealing,
    # smallest}}}`, as `bench.training.ledger` counts them.
    traffic: Mapping[str, Any] = field(default_factory=dict)
    # Of the clients' updates, as `Drift.values` has it; {} with client-level privacy.
    drift: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # 1 for each trained part of the net that no client's loss reached
    no_gradient: Mapping[str, float] = field(default_factory=dict)
    # Of the devices: `seconds` that the round takes, clients `asked`, which received the model,
    # `late` and `dropped` ones, and mean `staleness` of buffered changes; {} without devices.
    simulated: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class ClientDone:
    """A client has ended its part of a round."""

    round_index: int  # from 0
    done: int  # clients of the round that have ended, this one included
    cohort_size: int


class History:
    """File `history.jsonl`: a checked line per round; may be ahead of the last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"

    def rewind(self, rounds_done: int) -> list[RoundRecord]:
        """Drop the rounds after the checkpoint, torn last line included, and return the others.

        Raises:
            DataError: if rounds of the checkpoint are missing or altered.
        """
        content = self._content()
        lines = content.split(b"\n")[:-1][:rounds_done]
        records = self._records(lines, rounds_done)
        whole = b"".join(line + b"\n" for line in lines)
        if content != whole:
            atomic_write_bytes(self._path, whole)
        return records

    def read(self, at_least: int = 0) -> list[RoundRecord]:
        """Return all rounds but a torn last one, which a kill may leave.

        Raises:
            DataError: if a round is altered, or there are fewer than `at_least`.
        """
        return self._records(self._content().split(b"\n")[:-1], at_least)

    def append(self, record: RoundRecord, *, sync: bool = True) -> None:
        """Append one round; with `sync` the disk has it and those before when this returns."""
        append_line(self._path, json_with_checksum(record.as_dict()), sync=sync)

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Replace all rounds at once."""
        lines = (json_with_checksum(record.as_dict()).encode() + b"\n" for record in records)
        atomic_write_bytes(self._path, b"".join(lines))

    def _records(self, lines: Sequence[bytes], at_least: int) -> list[RoundRecord]:
        records: list[RoundRecord] = []
        try:
            for line in lines:
                record = RoundRecord(**parse_json(line))
                if record.round_index != len(records):
                    raise ValueError(f"round {record.round_index + 1} follows")
                records.append(record)
            if len(records) < at_least:
                raise ValueError(f"the run has at least {at_least}")
        except (ValueError, TypeError) as err:
            raise DataError(
                f"{str(self._path)!r} is whole for {len(records)} rounds only ({err}); delete the"
                " folder to run this from the start"
            ) from err
        return records

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as err:
            raise DataError(f"cannot read {str(self._path)!r}: {err.strerror or err}") from err

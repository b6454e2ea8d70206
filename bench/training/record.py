"""What a round leaves behind: its messages, losses and drift, and the record made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbench.bench.method import Upload
from fedbench.bench.training.client import Trained
from fedbench.bench.training.drift import Drift
from fedbench.bench.training.history import RoundRecord, Spread
from fedbench.bench.training.layout import Slot
from fedbench.bench.training.ledger import Ledger


def never_reached(history: Sequence[RoundRecord]) -> list[str]:
    """Return the parts of the net that the loss reached in no round with steps."""
    unreached = [{*record.no_gradient} for record in history if record.num_steps]
    return sorted(set.intersection(*unreached)) if unreached else []


@dataclass
class RoundTally:
    """Reports of the clients of one round, as they come in.

    Attributes:
        index: of the round, from 0.
        per_client: the messages of one client that trains.
        drift: of the uploads; None where its figures would tell of single clients.
        kept: tensors of which each client's are kept for `server_step`.
        exchanged: all messages of the round.
    """

    index: int
    per_client: Ledger
    drift: Drift | None
    kept: tuple[Slot, ...]
    exchanged: Ledger = field(default_factory=Ledger)
    results: list[Trained] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)

    def add(self, trained: Trained, upload: Tensor) -> None:
        """Add a client's report and its upload, which may be overwritten afterwards."""
        self.exchanged.merge(trained.wire)
        if trained.num_steps:  # without a step there are no weights to send
            self.exchanged.merge(self.per_client, "up")
        if self.drift is not None and trained.num_steps:
            self.drift.add(upload)
        weights = {slot.name: slot.of(upload).clone() for slot in self.kept}
        client, count = trained.client_id, trained.num_examples
        self.uploads.append(Upload(client, count, trained.num_steps, trained.extras, weights))
        self.results.append(trained)

    @property
    def measured(self) -> Trained | None:
        """The client whose net is measured after the round where nets differ."""
        return next(iter(self._stepped or self.results), None)

    @property
    def _stepped(self) -> list[Trained]:
        return [result for result in self.results if result.num_steps]

    def record(
        self, spread: Spread, logged: Mapping[str, float | Tensor], **others: Any
    ) -> RoundRecord:
        """Return the round's record; a loss is the mean over all steps of the cohort.

        `logged` are numbers that the server wrote, and `others` the fields of the record that no
        client reports.
        """
        stepped = self._stepped
        steps = sum(result.num_steps for result in stepped)
        means = {
            name: sum(r.parts.get(name, 0.0) * r.num_steps for r in stepped) / steps
            for name in sorted({name for r in stepped for name in r.parts})
        }
        numbers = {n: v.item() if isinstance(v, Tensor) else v for n, v in logged.items()}
        of_clients = [{*result.without_gradient} for result in stepped]
        unreached = sorted(set.intersection(*of_clients)) if of_clients else []
        return RoundRecord(
            round_index=self.index,
            loss=sum(r.loss * r.num_steps for r in stepped) / steps if steps else None,
            parts={**means, **numbers},
            cohort_size=len(self.results),
            idle_clients=len(self.results) - len(stepped),
            num_steps=steps,
            bytes_up=self.exchanged.bytes_up,
            bytes_down=self.exchanged.bytes_down,
            traffic=self.exchanged.as_dict(),
            no_gradient=dict.fromkeys(unreached, 1.0),
            **spread._asdict(),
            **others,
        )

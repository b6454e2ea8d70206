"""Runs of a study or sweep, shown by viewers while they go on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.training.history import History
from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.ray.driver import Source


@dataclass(frozen=True)
class Tracked:
    """A source whose jobs are tracked by their trial processes, or else once they have ended.

    Attributes:
        source: the source.
        tracking: the viewers.
    """

    source: Source
    tracking: Tracking

    @property
    def total(self) -> int:
        """Number of jobs of the whole command."""
        return self.source.total

    @property
    def ended(self) -> int:
        """Number of jobs that ended before the command."""
        return self.source.ended

    @property
    def finished(self) -> bool:
        """True once `next` has no more jobs to return."""
        return self.source.finished

    def next(self) -> CellJob | None:
        """Return a job of the source."""
        job = self.source.next()
        return None if job is None else replace(job, track=self.tracking.names)

    def done(self, outcome: Outcome) -> None:
        """Store an outcome; pass its row where the trial process could not."""
        row, points = outcome.row, outcome.history
        if row is None or outcome.tracked:
            self.source.done(outcome)
        elif outcome.status == "elsewhere":  # its rounds are in the store
            self.source.done(outcome)
            self.tracking(row.row_id)
        else:
            if points is None:  # read before the source deletes it
                points = [record.as_dict() for record in History(outcome.job.folder).read()]
            self.source.done(outcome)
            self.tracking.end(row, [flatten(point) for point in points])

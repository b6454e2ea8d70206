"""The published tables: `leaderboards/papers/*.parquet`, one row per printed number.

A printed number carries where it stands and what it was measured in. Numbers of different papers
never share a comparability class: their splits, norms and probes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Literal

from pydantic import Field

from fedbench.bench.config import content_id
from fedbench.bench.results.comparability import SETTING
from fedbench.bench.results.row import COUNT, FRACTION, Count, Fraction, Record

_CLASS = ("paper", "dataset", "setting", "metric", *SETTING, "probe")


class PaperCell(Record):
    """One printed number with its provenance; null = not stated in the paper."""

    paper: Literal["orchestra", "mi", "pfedae"] = Field(description="which of the three papers")
    citation: str = Field(description="authors, year, title")
    url: str | None = Field(None, description="where the paper can be read")
    source: str = Field(description="the table, named paper_tableN")
    dataset: str = Field(description="as printed")
    setting: str = Field(description="the table's setting")
    method: str = Field(description="as printed")
    spec: str | None = Field(None, description="the same method here; null = none here")
    metric: str = Field(description="the table's column")
    value: float = Field(description="fraction, or a number of classes", json_schema_extra=FRACTION)
    unit: Literal["fraction", "classes"] = Field(description="unit of value and spread")
    printed: str = Field(description="the number as printed; accuracies in percent")
    spread: float | None = Field(None, ge=0, description="printed spread, in the unit of value")
    spread_kind: Literal["standard deviation", "standard error"] | None = Field(
        None, description="what the spread is"
    )
    n_seeds: Count | None = Field(None, description="seeds of the mean", json_schema_extra=COUNT)
    partition: str | None = Field(None, description="how data is dealt to clients")
    alpha: float | None = Field(None, gt=0, description="Dirichlet concentration")
    num_clients: Count | None = Field(None, description="data holders", json_schema_extra=COUNT)
    participation: Fraction | None = Field(
        None, description="cohort size / number of clients", json_schema_extra=FRACTION
    )
    num_rounds: Count | None = Field(None, description="rounds", json_schema_extra=COUNT)
    local_epochs: Count | None = Field(
        None, description="passes over a client's data per round", json_schema_extra=COUNT
    )
    backbone: str | None = Field(None, description="architecture of the encoder")
    norm: str | None = Field(None, description="normalisation of the encoder")
    probe: str | None = Field(None, description="how the number was measured")
    note: str = Field("", description="what to know before comparing")

    @property
    def class_id(self) -> str:
        """Numbers with the same one may be compared with each other, and with no others."""
        return content_id({name: getattr(self, name) for name in _CLASS})


@lru_cache(maxsize=1)
def paper_cells() -> tuple[PaperCell, ...]:
    """All printed numbers, by table and in the order of print.

    Raises:
        StoreError: for a table that cannot be read.
    """
    from fedbench.bench.results.schema import decode

    folder = resources.files("fedbench.leaderboards").joinpath("papers")
    files = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".parquet")), key=lambda f: f.name
    )
    return tuple(cell for file in files for cell in decode(file.read_bytes(), PaperCell))


def paper_ranks(cells: Sequence[PaperCell]) -> list[int | None]:
    """The rank of each number among those of its table and class, 1 is the highest; ties share.

    None for numbers that are no accuracies.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        groups.setdefault((cell.source, cell.class_id), []).append(cell.value)
    return [
        1 + sum(other > cell.value for other in groups[cell.source, cell.class_id])
        if cell.unit == "fraction"
        else None
        for cell in cells
    ]


def write_paper(cells: Iterable[PaperCell]) -> bytes:
    """The Parquet file of one table; how a number or a note is corrected."""
    from fedbench.bench.results.schema import encode

    return encode(list(cells), PaperCell)

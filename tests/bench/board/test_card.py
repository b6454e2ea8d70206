"""The data card of the shipped results."""

from __future__ import annotations

import json

import pandas as pd

from fedbench.leaderboards import card


def test_the_shipped_card_is_of_the_shipped_rows() -> None:
    """`python leaderboards/card.py` writes it again."""
    for name, content in card.files().items():
        assert (card.FOLDER / name).read_bytes() == content, name


def test_croissant_names_columns_that_the_files_have() -> None:
    described = json.loads(card.files()["croissant.json"])
    (files,) = described["distribution"]
    (records,) = described["recordSet"]
    assert (files["@type"], records["field"][0]["source"]["fileSet"]["@id"]) == (
        "cr:FileSet",
        files["@id"],
    )
    path = next(card.FOLDER.glob(files["includes"]))
    assert {field["name"] for field in records["field"]} >= {*pd.read_parquet(path).columns}

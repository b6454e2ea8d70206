"""The data card of the shipped results."""

from __future__ import annotations

from fedbench.leaderboards import card


def test_the_shipped_card_is_of_the_shipped_rows() -> None:
    """`python leaderboards/card.py` writes it again."""
    for name, content in card.files().items():
        assert (card.FOLDER / name).read_bytes() == content, name

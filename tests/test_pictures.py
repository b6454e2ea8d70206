"""Pictures of README and of the findings are those of the committed rows.

`python docs/pictures.py` draws them again.
"""

import html
import re
from collections.abc import Mapping
from typing import cast

import pytest

from .test_readme import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn() -> Mapping[str, str]:
    return cast(Mapping[str, str], load("pictures").pictures())


def results(picture: str) -> list[str]:
    """Return the accuracies with their intervals that a picture shows, in order."""
    words = html.unescape(re.sub(r"<[^>]*>", "", picture)).replace("\xa0", " ")
    return re.findall(r"\d+\.\d ± \d+\.\d", words)


def test_pictures_show_the_rows(drawn: Mapping[str, str]) -> None:
    """That of the terminal by its accuracies: how tables look is tested where they are made."""
    committed = {name: (load("pictures").FOLDER / name).read_text("utf-8") for name in drawn}
    terminal = drawn["terminal.svg"], committed["terminal.svg"]
    assert results(terminal[0]) == results(terminal[1])
    assert len(results(terminal[0])) == 5 + 3 * 5  # a board of five methods, and three over alpha
    for name in drawn.keys() - {"terminal.svg"}:
        assert drawn[name] == committed[name], name


def test_pictures_are_small_and_load_nothing(drawn: Mapping[str, str]) -> None:
    for name, picture in drawn.items():
        assert len(picture) < 200_000, name
        assert not re.search(r"url\((?!#)|href=", picture), name

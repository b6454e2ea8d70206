"""Splits by name, for all sources: which images `Training/`, `mnist-TEST.parquet` or a column say.

A name says a split by one of its words, in any case and at any place: `seg_train`, `PublicTest`,
`train1`, `testset`. A name that says two splits is refused, since no order of words decides it.
"""

import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, cast

from fedbench.bench.system.errors import DataError

_log = logging.getLogger(__name__)

Split = Literal["train", "test", "validation", "unlabelled"]

# MNIST calls its 10,000 test images t10k.
_WORD = re.compile(
    r"(?:(?P<train>train|training|trn|trainval)|(?P<test>test|testing|tst|t10k)"
    r"|(?P<validation>validation|valid|val|dev|eval|evaluation)"
    r"|(?P<unlabelled>unlabell?ed|unsupervised))(?:sets?|data|images?|imgs?|files?|splits?)?"
)
_PART = re.compile(r"t10k|[^\W\d_]+", re.IGNORECASE)
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_COLUMN = re.compile(r".*(split|subset|usage|partition|fold(?!er)|phase).*")  # not `folder`
_FLAG = re.compile(r"(?:is|in|for|use)([a-z]+)|([a-z]+)(?:flag|mask)")
"""Names, without marks between words, of columns of yes and no: `is_test`, `train_mask`."""
_TRUTH = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "t", "y"), True),
    **dict.fromkeys(("0", "0.0", "false", "no", "f", "n"), False),
}
_SHORT = frozenset({"tr", "te", "ts", "va", "vl", "holdout", "heldout", "hold", "query", "gallery"})
"""Words that may say a split, and are too short or too rare to be taken for one."""
_MOST_CODES = 20
KNOWN = "train, test, validation (val, dev, eval) and unlabelled"


def split_of(name: str, *, strict: bool = True) -> Split | None:
    """Return the split that a name says, None for none; for two a `DataError`, or None.

    >>> [split_of(name) for name in ("Training", "seg_test", "PublicTest", "trains", "eval2")]
    ['train', 'test', 'test', None, 'validation']
    """
    said = {split for word in words_of(name) if (split := _split_of_word(word))}
    if said == {"train", "unlabelled"}:  # train_unlabelled
        return "unlabelled"
    if len(said) > 1:
        if not strict:
            return None
        raise DataError(f"{name!r} says two splits, {' and '.join(sorted(said))}; rename it")
    return said.pop() if said else None


def is_split_name(name: str) -> bool:
    """True if a name is nothing but a split: `Train`, `test_2`, `Test Set`, not `bullet_train`."""
    return _split_of_word("".join(words_of(name))) is not None


def hints_at_split(name: str) -> bool:
    """True if a word of a name may be short for a split: `mnist_tr`."""
    return not _SHORT.isdisjoint(words_of(name))


def template(name: str) -> str:
    """Return a name with one mark for the split that it says: equal for those of two splits."""
    return _PART.sub(lambda m: "<split>" if split_of(m[0]) else m[0].lower(), name)


def words_of(name: str) -> list[str]:
    """Return the words of a name: parts of letters, or these at their capitals."""
    words = []
    for part in _PART.findall(name):
        whole = _split_of_word(part.lower())
        words += [part.lower()] if whole else [w.lower() for w in _CAMEL.findall(part) or [part]]
    return words


def _split_of_word(word: str) -> Split | None:
    match = _WORD.fullmatch(word)
    return cast("Split", match.lastgroup) if match else None


def may_be_split(column: str) -> bool:
    """True if the name of a column promises splits: `Usage`, `data_split`, `is_test`, `test`.

    >>> [may_be_split(name) for name in ("json.is_test", "json.train", "folder")]
    [True, True, False]
    """
    column = column.removeprefix("json.")  # of a tar file's samples
    is_name = bool(_COLUMN.fullmatch(column.lower())) or is_split_name(column)
    return is_name or _flag(column) is not None


def _flag(column: str) -> Split | None:
    match = _FLAG.fullmatch("".join(words_of(column.removeprefix("json."))))
    return _split_of_word(match[1] or match[2]) if match else None


def split_that(column: str, value: Any) -> Split | Literal[""] | None:
    """Return the split that a column's value says, "" for a flag not set, None for none."""
    text = str(value).strip()
    flag = _flag(column)
    if flag is not None and (truth := _TRUTH.get(text.lower())) is not None:
        return flag if truth else ""
    return split_of(text)


def columns_that_split(values: Mapping[str, Collection[Any]], place: str) -> list[str]:
    """Return the columns that say the split of each row, of those that may; `values` are distinct.

    A column whose name promises nothing must hold the names of splits alone, training among them.
    Raises `DataError` if only some values of another say a split, or none where the column is
    called `split`, or no other says it and they are few whole numbers, or short for splits.
    """
    columns, codes = [], list[DataError]()
    for column, found in values.items():
        given = {value for value in found if value is not None}
        said = {value: split_that(column, value) for value in given if may_be_split(column)}
        said |= {v: split_of(str(v)) for v in given - said.keys() if is_split_name(str(v))}
        unknown = [value for value in given if said.get(value) is None]
        listed = some(sorted(repr(value) for value in (unknown or given)))
        if given and not unknown:
            if may_be_split(column) or {"train"} < {*said.values()}:
                columns.append(column)
        elif given and (may_be_split(column) or _are_short(given)):
            error = DataError(
                f"{place}: {column!r} has the values {listed}, which say no split; known: {KNOWN};"
                f" set data.test_rows={column}=VALUE to the value of test images, or"
                " data.test_rows=none if no column says a split"
            )
            if len(unknown) < len(given) or "split" in column.lower():
                raise error
            if _are_codes(given) or _are_short(given):
                codes.append(error)
            else:
                _log.warning("%s: %r (%s) says no split and is not used", place, column, listed)
    if codes and not columns:
        raise codes[0]
    return columns


def _are_short(values: Collection[Any]) -> bool:
    """True for two words or more that all may be short for a split: tr, te."""
    return len(values) > 1 and all(hints_at_split(v) or is_split_name(v) for v in map(str, values))


def _are_codes(values: Collection[Any]) -> bool:
    """True for a few whole numbers, as CelebA's 0, 1 and 2, or for yes and no."""
    numbers = (str(value).removesuffix(".0").lower() for value in values)
    return len(values) <= _MOST_CODES and all(n.isdigit() or n in _TRUTH for n in numbers)


def split_of_row(values: Mapping[str, Any], place: str) -> Split:
    """Return the split that the columns of a row say; else raise a `DataError`."""
    said: dict[str, Split] = {}
    for column, value in values.items():
        if value is None or (split := split_that(column, value)) is None:
            raise DataError(f"{place}: {column!r} is {value!r}; known: {KNOWN}")
        if split:
            said[column] = split
    if len(set(said.values())) > 1:
        listed = " and ".join(f"{column!r} says {split}" for column, split in said.items())
        raise DataError(f"{place}: {listed}; remove one of these columns")
    if said:
        return next(iter(said.values()))
    # Flags alone, and none is set.
    flags = {_flag(column) for column in values}
    if "train" not in flags:
        return "train"
    if flags != {"train"}:
        raise DataError(f"{place}: none of {', '.join(values)} is set; needed: one")
    return "test"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the nearest match of a class in a message, or an empty text.

    >>> nearest("Cat", ["cat", "dog"])
    " (nearest: 'cat')"
    """
    folded = {plain(each): each for each in names}
    match = get_close_matches(plain(name), folded, 1, 0.75)
    return f" (nearest: {folded[match[0]]!r})" if match else ""


def plain(name: str) -> str:
    """Return a name without case, doubled blanks and forms of letters that look alike."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def some(names: Sequence[str]) -> str:
    """Return the first names of a list for a message, and how many follow."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

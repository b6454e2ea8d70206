"""Text about bundles and releases: what was packed, how to propose it, what checks found."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.show_results import limit_of
from fedbench.bench.terminal.tables import show_record, show_records
from fedbench.bench.terminal.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbench.bench.board.checks import CheckCount
    from fedbench.bench.board.release import Released
    from fedbench.bench.board.verify import BundleVerification, Submission
    from fedbench.bench.runs.compare import Reproduction

_SHOWN = 30


def show_submission(result: Submission) -> None:
    """Print the file, and the commands and the text that propose it."""
    record = {**vars(result), "by": str(result.by or ""), "not_made": _not_made(result.checks)}
    names = ("id", "by", "licence", "num_files", "num_bytes", "left_out", "not_made")
    show_record(f"{result.file} · {count(len(result.rows), 'run')}", record, names)
    for heading, lines in (
        ("To propose it, in a clone of the project whose board it is for:", result.commands),
        ("Then open a pull request with this text:", result.text.splitlines()),
    ):
        emit("\n".join(["", heading, "", *(f"  {line}" for line in lines)]))


def show_release(result: Released) -> None:
    """Print what was written, and the ranks that have changed."""
    names = ("version", "methods", "num_bytes", "files")
    show_record(f"{result.folder} · {count(result.num_rows, 'run')}", vars(result), names)
    if result.against is not None and not result.changes:
        emit(f"no rank differs from {result.against}")
    for board in dict.fromkeys(change.board for change in result.changes):
        emit("\n")
        rows = [
            {**vars(change), "before": change.before or "–", "after": change.after or "–"}
            for change in result.changes
            if change.board == board
        ]
        show_records(rows, ("before", "after", "method", "variant", "cause"), title=board)
    folder = shlex.quote(str(result.folder))
    lines = [
        "To publish it on the Hugging Face Hub, under your name there:",
        "",
        "  hf auth login",
        f"  hf upload NAME/{result.folder.resolve().name} {folder} . --repo-type dataset",
        "",
        'A DOI: "Generate DOI" in the settings of the data set there, or a new upload to Zenodo.',
    ]
    emit("\n".join(["", *lines]))


def show_bundle(result: BundleVerification) -> None:
    """Print a line for each check, the contradictions, and what was run again."""
    title = f"bundle {result.id[:10]}" if result.id else f"rows of {result.bundle}"
    checks = [vars(check) for check in result.checks]
    show_records(checks, ("check", "passed", "failed", "unchecked", "about"), title=title)
    problems = [
        f"{f'run {found.run_id[:8]}' if found.run_id else 'the bundle'}, {found.check}:"
        f" {found.problem}"
        for found in result.problems[:_SHOWN]
    ]
    if (more := len(result.problems) - _SHOWN) > 0:
        problems.append(f"and {more} more; --json lists all")
    unclear = sum(rerun.verdict == "cannot tell" for rerun in result.reruns)
    if result.problems:
        verdict = f"refused, {count(len(result.problems), 'contradiction')}"
    elif not result.ok:
        verdict = "refused, a row was not reproduced"
    else:
        verdict = "nothing contradicts it"
        if unclear:
            verdict += f", but {unclear} of {count(len(result.reruns), 're-run')} cannot tell"
    show_record(
        "",
        {
            "submitted by": str(result.by or ""),
            "not made": _not_made(result.checks),
            "problems": problems,
            "run again": [_rerun(rerun) for rerun in result.reruns],
            "compared with": result.board,
            "added to": result.added_to,
            "seconds": result.seconds,
            "result": f"{count(len(result.rows), 'run')}: {verdict}",
        },
    )


def _rerun(rerun: Reproduction) -> str:
    row = rerun.claimed
    text = f"run {row.row_id[:8]} · {row.method} · seed {row.seed}: {rerun.verdict}"
    if not rerun.differences:
        return f"{text}{limit_of(rerun)}"
    differences = count(len(rerun.differences), "difference")
    return f"{text}{limit_of(rerun)}, {': '.join(filter(None, (differences, rerun.reason)))}"


def _not_made(checks: Sequence[CheckCount]) -> list[str]:
    groups = dict[tuple[int, str], list[str]]()
    for each in checks:
        groups.setdefault((each.unchecked, each.reason), []).append(each.check)
    return [
        f"{', '.join(names)} of {count(number, 'run')}: {reason}"
        for (number, reason), names in groups.items()
        if number
    ]

"""Text about bundles: what was packed, how to propose it, and what checks say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.show_results import limit_of
from fedbench.bench.terminal.tables import show_table
from fedbench.bench.terminal.units import count, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbench.bench.board.checks import CheckCount
    from fedbench.bench.board.release import Released
    from fedbench.bench.board.submit import Submission
    from fedbench.bench.board.verify import BundleVerification
    from fedbench.bench.runs.reproduce import Reproduction

_SHOWN = 30


def show_submission(result: Submission) -> None:
    """Print the file, and the commands and the text that propose it."""
    files = count(result.num_files, "file")
    by = f"submitted by {result.by}" if result.by else "by nobody named"
    emit(
        f"{result.file} · {count(len(result.rows), 'run')}, {files}, {size(result.num_bytes)}"
        f" · {by}"
    )
    emit(f"id {result.id}")
    for reason in result.left_out:
        emit(f"left out: {reason}")
    for check in result.checks:
        if check.unchecked:
            emit(f"not checked for {count(check.unchecked, 'run')}: {_why(check)}")
    commands, text = (
        "\n".join(f"  {line}" for line in lines)
        for lines in (result.commands, result.text.splitlines())
    )
    emit(f"\nTo propose it, in a clone of the project whose board it is for:\n\n{commands}")
    emit(f"\nThen open a pull request with this text:\n\n{text}")


def show_release(result: Released) -> None:
    """Print what was written, and the ranks that have changed."""
    emit(
        f"{result.folder} · version {result.version} · {count(result.num_rows, 'run')} of"
        f" {count(len(result.methods), 'method')} · {size(result.num_bytes)}"
    )
    emit(f"files {', '.join(result.files)}")
    if result.against is None:
        return
    if not result.changes:
        emit(f"no rank differs from {result.against}")
        return
    for board in dict.fromkeys(change.board for change in result.changes):
        rows = [
            [
                *("-" if rank is None else str(rank) for rank in (change.before, change.after)),
                *(change.method, change.variant, change.cause),
            ]
            for change in result.changes
            if change.board == board
        ]
        emit("\n")
        show_table(["before", "after", "method", "variant", "cause"], rows, title=board)


def show_bundle(result: BundleVerification) -> None:
    """Print a line for each check, the contradictions, and what was run again."""
    title = f"bundle {result.id[:10]}" if result.id else f"rows of {result.bundle}"
    rows = [
        [check.check, *map(str, (check.passed, check.failed, check.unchecked)), check.about]
        for check in result.checks
    ]
    show_table(["check", "passed", "failed", "not made", "compares"], rows, title=title)
    for check in result.checks:
        if check.unchecked:
            emit(f"not made: {_why(check)}")
    if result.by:
        emit(f"submitted by {result.by}")
    for note in result.notes[:_SHOWN]:
        emit(note)
    _show_problems(result)
    _show_reruns(result.reruns)
    if result.added_to:
        emit(f"added to {result.added_to}")
    compared = f", compared with {result.board}" if result.board else ""
    found = count(len(result.problems), "contradiction")
    verdict = "nothing contradicts it" if not result.problems else f"refused, {found}"
    if unclear := sum(rerun.verdict == "cannot tell" for rerun in result.reruns):
        verdict += f", but {unclear} of {count(len(result.reruns), 're-run')} cannot tell"
    if not result.problems and not result.ok:
        verdict = "refused, a row was not reproduced"
    emit(f"{count(len(result.rows), 'run')}{compared} in {result.seconds:.1f} s: {verdict}")


def _show_problems(result: BundleVerification) -> None:
    for found in result.problems[:_SHOWN]:
        where = f"run {found.row_id[:8]}" if found.row_id else "the bundle"
        emit(f"{where}, {found.check}: {found.problem}")
    if (more := len(result.problems) - _SHOWN) > 0:
        emit(f"and {more} more; --json lists all")


def _show_reruns(reruns: Sequence[Reproduction]) -> None:
    for rerun in reruns:
        differences = count(len(rerun.differences), "difference")
        reason = f", {differences}" + (f": {rerun.reason}" if rerun.reason else "")
        head = f"run {rerun.row_id[:8]} · {rerun.method} · seed {rerun.seed} run again"
        emit(f"{head}: {rerun.verdict}{limit_of(rerun)}{reason if rerun.differences else ''}")


def _why(check: CheckCount) -> str:
    return f"{check.check}, {check.reason}"

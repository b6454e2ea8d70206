"""Commands for what a store holds already; `cli.py` joins them to the others."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from fedbench.bench import cli_options as opt
from fedbench.bench.cli_groups import Output, Places, grouped
from fedbench.bench.console import emit, emit_json, warn
from fedbench.bench.wording import count, size

results_app = typer.Typer()
DIFFERENT, UNREADABLE = 4, 5


def check_strict(strict: bool, problems: Sequence[str]) -> None:
    """Leave with an exit code of its own if that was asked for and something was not read."""
    if strict and problems:
        raise typer.Exit(UNREADABLE)


@results_app.command(epilog="Example: fedbench report results.html --grid heterogeneity")
@grouped
def report(
    file: opt.Page,
    *,
    grid: opt.OfGrid = None,
    dataset: opt.Dataset = None,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: Output,
) -> None:
    """One web page with tables and charts; needs no network."""
    from fedbench.bench import api_results

    written = api_results.report(file, store, grid=grid, dataset=dataset)
    for problem in written.problems:
        warn(problem)
    if output.json:
        emit_json(written.as_dict())
    else:
        runs = count(written.num_rows, "run")
        studies = count(written.num_studies, "study", "studies")
        emit(f"{written.file} · {runs}, {studies}, {size(written.num_bytes)}")
    check_strict(strict, written.problems)


@results_app.command(epilog="Example: fedbench export 0123456789abcdef0123 encoder.safetensors")
@grouped
def export(
    run_id: opt.RunId,
    file: opt.File,
    *,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: Output,
) -> None:
    """Write a run's encoder as .safetensors, with a JSON card."""
    from fedbench.bench import api_results, listings

    exported = api_results.export_encoder(run_id, file, store=store, data_dir=data_dir)
    listings.show_record(exported, output.json)


@results_app.command(epilog="Example: fedbench studies simclr-810893d84f")
@grouped
def studies(
    study: opt.StudyId = None,
    *,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: Output,
) -> None:
    """Tuning studies: trials, cost, what the objective foretold."""
    from fedbench.bench import api_results, studies_report
    from fedbench.bench.errors import UnknownNameError

    found = api_results.studies(store)
    for problem in found.problems:
        warn(problem)
    views = {view.study_id: view for view in found}
    if study is None:
        records = [view.as_dict() for view in found]
        emit_json(records) if output.json else studies_report.show_studies(found)
    elif study not in views:
        raise UnknownNameError("study", study, views)
    else:
        view = views[study]
        emit_json(view.as_dict()) if output.json else studies_report.show_study(view)
    check_strict(strict, found.problems)


@results_app.command(epilog="Example: fedbench merge ~/anna/leaderboards ~/ben/leaderboards")
@grouped
def merge(
    stores: opt.Stores,
    *,
    dry_run: opt.DryRun = False,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: Output,
) -> None:
    """Bring other stores into this one; refuses what contradicts."""
    from fedbench.bench import api_results, studies_report

    merged = api_results.merge(stores, store, dry_run=dry_run)
    for problem in merged.problems:
        warn(f"left out: {problem}")
    if output.json:
        emit_json(merged.as_dict())
    else:
        emit(studies_report.merged_text(merged, dry_run=dry_run))
    check_strict(strict, merged.problems)


@results_app.command(epilog="Example: fedbench reproduce 0123456789abcdef0123")
@grouped
def reproduce(
    run_id: opt.RunId,
    *,
    data: opt.DataAt = None,
    keep: opt.Keep = None,
    workers: opt.Workers = None,
    places: Places,
    output: Output,
) -> None:
    """Run a stored row again from itself and compare every bit."""
    from fedbench.bench import api_results, run_report, studies_report

    with run_report.RunProgress(f"reproduce {run_id}", **output.loudness) as progress:
        found = api_results.reproduce(
            run_id,
            data_name=data,
            keep=keep,
            workers=workers,
            on_round=progress,
            **places.values(),
        )
    emit_json(found.as_dict()) if output.json else studies_report.show_reproduction(found)
    if not found.same:
        raise typer.Exit(DIFFERENT)


@results_app.command(epilog="Example: fedbench dashboard simclr-810893d84f")
@grouped
def dashboard(
    study: opt.StudyId = None,
    *,
    port: opt.Port = 8080,
    mirror_only: opt.MirrorOnly = False,
    store: opt.StoreDir = None,
    output: Output,
) -> None:
    """Show tuning studies in optuna-dashboard."""
    from fedbench.bench import dashboard as board
    from fedbench.bench.api import open_store
    from fedbench.bench.console import note

    mirrored = board.mirror(open_store(store), study)
    if output.json:
        emit_json(mirrored.as_dict())
    else:
        studies = count(len(mirrored.studies), "study", "studies")
        emit(f"{mirrored.file} · {studies}, {count(mirrored.num_trials, 'trial')}")
    if not mirror_only:
        board.check_installed(mirrored)
        note(f"http://127.0.0.1:{port} · Ctrl-C ends it")
        board.serve(mirrored, port)

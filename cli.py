"""The `fedbench` command: parses, calls `fedbench.bench.api`, prints. No logic.

Heavy modules are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedbench.bench.terminal import groups
from fedbench.bench.terminal import options as opt
from fedbench.bench.terminal.console import emit, emit_json, note, show_table, suggest, warn
from fedbench.bench.terminal.exit_codes import guarded
from fedbench.bench.terminal.units import count, size
from fedbench.bench.training import fork_server

FAILED, DIFFERENT, UNREADABLE = 4, 4, 5
_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,  # rich would double the time of --help and box every error
    "pretty_exceptions_enable": False,
    "invoke_without_command": True,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app, data_app = typer.Typer(**_SETTINGS), typer.Typer(**_SETTINGS)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parse = partial(app, words, prog_name="fedbench", standalone_mode=False)
    sys.exit(guarded(parse, debug="--debug" in words))


@app.callback(epilog="Example: fedbench run simclr --preset demo")
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
) -> None:
    """Tune, sweep and compare federated methods that learn without labels."""
    if version:
        from fedbench import __version__

        emit(f"fedbench {__version__}")
        raise typer.Exit
    _help_without_command(context)


@data_app.callback()
def _data(context: typer.Context) -> None:
    """Data sets: download or convert them into the cache."""
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        note(context.get_help())
        raise typer.Exit(2)


@app.command(epilog="Example: fedbench run simclr+uv --set data.alpha=1.0 --seed 3 --json")
@groups.grouped
def run(
    spec: opt.Spec,
    *,
    settings: groups.Settings,
    workers: opt.Workers = None,
    track: opt.Track = None,
    dry_run: opt.DryRun = False,
    places: groups.Places,
    output: groups.Output,
) -> None:
    """One federated run, then its evaluation."""
    if not dry_run:
        fork_server.start_early(workers, places.device)
    from fedbench.bench import api
    from fedbench.bench.terminal import show_run

    common: dict[str, Any] = {**settings.values(), **places.values(), "workers": workers}
    if dry_run:
        plan = api.plan_run(spec, **common)
        emit_json(plan.as_dict()) if output.json else emit(show_run.plan_text(plan))
        return
    with show_run.RunProgress(f"run {spec}", **output.loudness) as progress:
        common |= {"on_start": progress.start, "on_resume": progress.resume}
        result = api.run(spec, track=opt.parse_names(track) or (), on_round=progress, **common)
    if result.stored_before:
        note(f"run {result.run_id} was in the store already; nothing was executed")
    for text in show_run.warnings(result):
        warn(text)
    emit_json(result.as_dict()) if output.json else emit(show_run.summary(result))
    if output.suggests:
        suggest("fedbench leaderboard", places.store)


@app.command(epilog="Example: fedbench tune simclr+uv --trials 24 --seeds-per-trial 2")
@groups.grouped
def tune(
    spec: opt.Spec,
    *,
    trials: opt.Trials = 20,
    seeds_per_trial: opt.SeedsPerTrial = 1,
    sampler: opt.Sampler = "tpe",
    space: opt.Space = None,
    watch_labels: opt.WatchLabels = False,
    stop_hopeless: opt.StopHopeless = False,
    study: opt.Study = None,
    dry_run: opt.DryRun = False,
    settings: groups.StudySettings,
    cluster: groups.Cluster,
    places: groups.Places,
    output: groups.Output,
) -> None:
    """Search hyperparameters without looking at a label."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_tuning

    with show_tuning.CellProgress(f"tune {spec}", **output.loudness) as progress:
        result = api.tune(
            spec,
            trials=trials,
            seeds_per_trial=seeds_per_trial,
            sampler=sampler,
            space_file=space,
            watch_labels=watch_labels,
            stop_hopeless=stop_hopeless,
            study_name=study,
            on_progress=progress,
            dry_run=dry_run,
            **settings.values(),
            **places.values(),
            **cluster.values(),
        )
    emit_json(result.as_dict()) if output.json else show_tuning.show_study(result)
    if (result.failed or result.best is None) and not dry_run:
        raise typer.Exit(FAILED)
    if output.suggests and result.config_file is not None:
        suggest(show_tuning.next_command(result, settings, places, cluster))


@app.command(epilog="Example: fedbench sweep --grid heterogeneity --seeds 0,1,2")
@groups.grouped
def sweep(
    *,
    grid: opt.Grid,
    methods: opt.Methods = None,
    seeds: opt.Seeds = None,
    tuned: opt.Tuned = None,
    retry_failed: opt.RetryFailed = False,
    track: opt.Track = None,
    dry_run: opt.DryRun = False,
    settings: groups.SweepSettings,
    cluster: groups.Cluster,
    places: groups.Places,
    output: groups.Output,
) -> None:
    """All cells of a grid that are not in the store yet."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_tuning

    with show_tuning.CellProgress(f"sweep {grid}", **output.loudness) as progress:
        result = api.sweep(
            grid,
            methods=opt.parse_names(methods),
            seeds=opt.parse_seeds(seeds, settings.seed),
            tuned=opt.parse_tuned(tuned),
            retry_failed=retry_failed,
            track=opt.parse_names(track) or (),
            on_progress=progress,
            dry_run=dry_run,
            **settings.without_seed(),
            **places.values(),
            **cluster.values(),
        )
    emit_json(result.as_dict()) if output.json else show_tuning.show_sweep(result)
    if result.failed and not dry_run:
        raise typer.Exit(FAILED)
    if output.suggests and not dry_run:
        suggest(f"fedbench leaderboard --grid {shlex.quote(grid)}", places.store)


@app.command(epilog="Example: fedbench leaderboard --grid heterogeneity --format markdown")
@groups.grouped
def leaderboard(
    *,
    grid: opt.OfGrid = None,
    dataset: opt.Dataset = None,
    metric: opt.Metric = "linear",
    format_: opt.FormatName = None,
    published: opt.Published = True,
    reach: opt.Reach = None,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: groups.Output,
) -> None:
    """Rank what the store holds."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_results

    form = opt.parse_format(format_, output.json)
    ranking = api.leaderboard(
        store, grid=grid, dataset=dataset, metric=metric, published=published, reach=reach
    )
    for problem in ranking.problems:
        warn(problem)
    if ranking.nothing and not output.quiet:
        note(ranking.nothing)
    show_results.show(ranking, form, quiet=output.quiet)
    check_strict(strict, ranking.problems)


@app.command(epilog="Example: fedbench partition --preset cross-device --labels balanced:50000:10")
@groups.grouped
def partition(
    *,
    labels: opt.Labels = None,
    settings: groups.Settings,
    data_dir: opt.DataDir = None,
    output: groups.Output,
) -> None:
    """Show how a preset deals its data to clients."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_lists

    deal = api.partition(labels=labels, data_dir=data_dir, **settings.values())
    emit_json(deal.as_dict()) if output.json else show_lists.show_deal(deal)


@app.command(epilog="Example: fedbench config simclr+uv --preset cross-device --yaml > mine.yaml")
@groups.grouped
def config(
    spec: opt.Spec,
    *,
    settings: groups.Settings,
    yaml: opt.AsYaml = False,
    output: groups.Output,
) -> None:
    """Show the configuration and where each value comes from."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_lists

    resolved = api.resolve(spec, **settings.values())
    if output.json:
        emit_json(show_lists.config_record(resolved))
    elif yaml:
        emit(show_lists.config_yaml(resolved))
    else:
        show_lists.show_config(resolved)


def _add_listing(kind: str, summary: str) -> None:
    @app.command(kind, help=summary, epilog=f"Example: fedbench {kind}")
    @groups.grouped
    def show(output: groups.Output) -> None:
        _list(kind, output)


_add_listing("methods", "List methods and add-ons with their hyperparameters.")
_add_listing("presets", "List presets: named, complete settings.")
_add_listing("grids", "List grids that can be swept.")
_add_listing("spaces", "List search spaces: what can be tuned.")


@app.command(epilog="Example: fedbench datasets")
@groups.grouped
def datasets(*, data_dir: opt.DataDir = None, output: groups.Output) -> None:
    """List data sets, and how to get them."""
    _list("datasets", output, data_dir)


def _list(kind: str, output: groups.Output, data_dir: Path | None = None) -> None:
    from fedbench.bench.terminal import show_lists

    records = show_lists.records(kind, data_dir)
    emit_json(records) if output.json else show_table(*show_lists.table(kind, records))


@app.command(epilog="Example: fedbench doctor --address auto")
@groups.grouped
def doctor(
    *,
    address: opt.Address = None,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: groups.Output,
) -> None:
    """Say what this machine, or a cluster, has and lacks."""
    from fedbench.bench.api import as_path, open_store
    from fedbench.bench.tuning.doctor import checkup

    found = checkup(open_store(store), as_path(data_dir), address)
    if output.json:
        emit_json(found.as_dict())
    else:
        width = max(len(check.name) for check in found.checks)
        for check in found.checks:
            remedy = f" ({check.remedy})" if check.remedy else ""
            emit(f"{check.status:<8} {check.name:<{width}}  {check.detail}{remedy}")
    if found.exit_code:
        raise typer.Exit(found.exit_code)


@app.command(epilog="Example: fedbench figures 0123456789abcdef0123 --out figures")
@groups.grouped
def figures(
    run_ids: opt.RunIds,
    *,
    out: opt.PictureFolder = Path("figures"),
    format_: opt.PictureFormName = opt.PictureForm.BOTH,
    images: opt.Images = 1000,
    client: opt.ClientId = None,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: groups.Output,
) -> None:
    """Draw angles between classes and t-SNE maps of test features."""
    from fedbench.bench import api

    made = api.figures(
        run_ids,
        out,
        forms=("png", "svg") if format_ is opt.PictureForm.BOTH else (format_.value,),
        num_images=images,
        client_id=client,
        store=store,
        data_dir=data_dir,
    )
    if output.json:
        emit_json(made.as_dict())
    else:
        emit("\n".join(str(file) for file in made.files))


def check_strict(strict: bool, problems: Sequence[str]) -> None:
    """Leave with an exit code of its own if that was asked for and something was not read."""
    if strict and problems:
        raise typer.Exit(UNREADABLE)


@app.command(epilog="Example: fedbench report results.html --grid heterogeneity")
@groups.grouped
def report(
    file: opt.Page,
    *,
    grid: opt.OfGrid = None,
    dataset: opt.Dataset = None,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: groups.Output,
) -> None:
    """One web page with tables and charts; needs no network."""
    from fedbench.bench import api

    written = api.report(file, store, grid=grid, dataset=dataset)
    for problem in written.problems:
        warn(problem)
    if output.json:
        emit_json(written.as_dict())
    else:
        runs = count(written.num_rows, "run")
        studies = count(written.num_studies, "study", "studies")
        emit(f"{written.file} · {runs}, {studies}, {size(written.num_bytes)}")
    check_strict(strict, written.problems)


@app.command(epilog="Example: fedbench export 0123456789abcdef0123 encoder.safetensors")
@groups.grouped
def export(
    run_id: opt.RunId,
    file: opt.File,
    *,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: groups.Output,
) -> None:
    """Write a run's encoder as .safetensors, with a JSON card."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_lists

    exported = api.export_encoder(run_id, file, store=store, data_dir=data_dir)
    show_lists.show_record(exported, output.json)


@app.command(epilog="Example: fedbench studies simclr-810893d84f")
@groups.grouped
def studies(
    study: opt.StudyId = None,
    *,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: groups.Output,
) -> None:
    """Tuning studies: trials, cost, what the objective foretold."""
    from fedbench.bench import api
    from fedbench.bench.system.errors import UnknownNameError
    from fedbench.bench.terminal import show_tuning

    found = api.studies(store)
    for problem in found.problems:
        warn(problem)
    views = {view.study_id: view for view in found}
    if study is None:
        records = [view.as_dict() for view in found]
        emit_json(records) if output.json else show_tuning.show_studies(found)
    elif study not in views:
        raise UnknownNameError("study", study, views)
    else:
        view = views[study]
        emit_json(view.as_dict()) if output.json else show_tuning.show_stored_study(view)
    check_strict(strict, found.problems)


@app.command(epilog="Example: fedbench merge ~/anna/leaderboards ~/ben/leaderboards")
@groups.grouped
def merge(
    stores: opt.Stores,
    *,
    dry_run: opt.DryRun = False,
    strict: opt.Strict = False,
    store: opt.StoreDir = None,
    output: groups.Output,
) -> None:
    """Bring other stores into this one; refuses what contradicts."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_results

    merged = api.merge(stores, store, dry_run=dry_run)
    for problem in merged.problems:
        warn(f"left out: {problem}")
    if output.json:
        emit_json(merged.as_dict())
    else:
        emit(show_results.merged_text(merged, dry_run=dry_run))
    check_strict(strict, merged.problems)


@app.command(epilog="Example: fedbench reproduce 0123456789abcdef0123")
@groups.grouped
def reproduce(
    run_id: opt.RunId,
    *,
    data: opt.DataAt = None,
    keep: opt.Keep = None,
    workers: opt.Workers = None,
    places: groups.Places,
    output: groups.Output,
) -> None:
    """Run a stored row again from itself and compare every bit."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_results, show_run

    with show_run.RunProgress(f"reproduce {run_id}", **output.loudness) as progress:
        found = api.reproduce(
            run_id,
            data_name=data,
            keep=keep,
            workers=workers,
            on_round=progress,
            **places.values(),
        )
    emit_json(found.as_dict()) if output.json else show_results.show_reproduction(found)
    if not found.same:
        raise typer.Exit(DIFFERENT)


@app.command(epilog="Example: fedbench dashboard simclr-810893d84f")
@groups.grouped
def dashboard(
    study: opt.StudyId = None,
    *,
    port: opt.Port = 8080,
    mirror_only: opt.MirrorOnly = False,
    store: opt.StoreDir = None,
    output: groups.Output,
) -> None:
    """Show tuning studies in optuna-dashboard."""
    from fedbench.bench.api import open_store
    from fedbench.bench.tuning import dashboard

    mirrored = dashboard.mirror(open_store(store), study)
    if output.json:
        emit_json(mirrored.as_dict())
    else:
        studies = count(len(mirrored.studies), "study", "studies")
        emit(f"{mirrored.file} · {studies}, {count(mirrored.num_trials, 'trial')}")
    if not mirror_only:
        dashboard.check_installed(mirrored)
        note(f"http://127.0.0.1:{port} · Ctrl-C ends it")
        dashboard.serve(mirrored, port)


app.add_typer(data_app, name="data", help="Data sets: download or convert them into the cache.")


@data_app.command(epilog="Example: fedbench data prepare cifar10")
@groups.grouped
def prepare(name: opt.DatasetName, *, data_dir: opt.DataDir = None, output: groups.Output) -> None:
    """Download or convert a data set into the cache, and check every byte of it."""
    from fedbench.bench import api
    from fedbench.bench.terminal import show_lists

    with show_lists.DecodingProgress(name, quiet=output.quiet) as progress:
        prepared = api.prepare_data(name, data_dir=data_dir, on_progress=progress)
    show_lists.show_record(prepared, output.json)


if __name__ == "__main__":
    main()

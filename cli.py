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

from fedbench.bench import cli_groups as groups
from fedbench.bench import cli_options as opt
from fedbench.bench import nursery
from fedbench.bench.cli_doctor import doctor
from fedbench.bench.cli_figures import add_figures
from fedbench.bench.cli_results import check_strict, results_app
from fedbench.bench.console import emit, emit_json, note, show_table, suggest, warn
from fedbench.bench.guard import guarded

FAILED = 4
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
        nursery.prepare(workers, places.device)
    from fedbench.bench import api, run_report

    common: dict[str, Any] = {**settings.values(), **places.values(), "workers": workers}
    if dry_run:
        plan = api.plan_run(spec, **common)
        emit_json(plan.as_dict()) if output.json else emit(run_report.plan_text(plan))
        return
    with run_report.RunProgress(f"run {spec}", **output.loudness) as progress:
        common |= {"on_start": progress.start, "on_resume": progress.resume}
        result = api.run(spec, track=opt.parse_names(track) or (), on_round=progress, **common)
    if result.stored_before:
        note(f"run {result.run_id} was in the store already; nothing was executed")
    for text in run_report.warnings(result):
        warn(text)
    emit_json(result.as_dict()) if output.json else emit(run_report.summary(result))
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
    from fedbench.bench import api_tuning, cells_report

    with cells_report.CellProgress(f"tune {spec}", **output.loudness) as progress:
        result = api_tuning.tune(
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
    emit_json(result.as_dict()) if output.json else cells_report.show_study(result)
    if (result.failed or result.best is None) and not dry_run:
        raise typer.Exit(FAILED)
    if output.suggests and result.config_file is not None:
        suggest(cells_report.next_command(result, settings, places, cluster))


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
    from fedbench.bench import api_tuning, cells_report

    with cells_report.CellProgress(f"sweep {grid}", **output.loudness) as progress:
        result = api_tuning.sweep(
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
    emit_json(result.as_dict()) if output.json else cells_report.show_sweep(result)
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
    from fedbench.bench import api_results, board_report

    form = opt.parse_format(format_, output.json)
    ranking = api_results.leaderboard(
        store, grid=grid, dataset=dataset, metric=metric, published=published, reach=reach
    )
    for problem in ranking.problems:
        warn(problem)
    if ranking.nothing and not output.quiet:
        note(ranking.nothing)
    board_report.show(ranking, form, quiet=output.quiet)
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
    from fedbench.bench import api, listings

    deal = api.partition(labels=labels, data_dir=data_dir, **settings.values())
    emit_json(deal.as_dict()) if output.json else listings.show_deal(deal)


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
    from fedbench.bench import api, listings

    resolved = api.resolve(spec, **settings.values())
    if output.json:
        emit_json(listings.config_record(resolved))
    elif yaml:
        emit(listings.config_yaml(resolved))
    else:
        listings.show_config(resolved)


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
    from fedbench.bench import listings

    records = listings.records(kind, data_dir)
    emit_json(records) if output.json else show_table(*listings.table(kind, records))


app.command(epilog="Example: fedbench doctor --address auto")(doctor)
add_figures(app)
app.add_typer(results_app)
app.add_typer(data_app, name="data", help="Data sets: download or convert them into the cache.")


@data_app.command(epilog="Example: fedbench data prepare cifar10")
@groups.grouped
def prepare(name: opt.DatasetName, *, data_dir: opt.DataDir = None, output: groups.Output) -> None:
    """Download or convert a data set into the cache, and check every byte of it."""
    from fedbench.bench import api, listings

    with listings.DecodingProgress(name, quiet=output.quiet) as progress:
        prepared = api.prepare_data(name, data_dir=data_dir, on_progress=progress)
    listings.show_record(prepared, output.json)


if __name__ == "__main__":
    main()

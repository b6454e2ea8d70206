"""The `fedbench` command: parses, calls `fedbench.bench.api`, prints. No logic.

Heavy modules are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedbench.bench import cli_options as opt
from fedbench.bench.console import emit, emit_json, note, show_table, warn
from fedbench.bench.guard import guarded

FAILED = 4
_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,  # rich would double the time of --help and box every error
    "pretty_exceptions_enable": False,
    "invoke_without_command": True,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app = typer.Typer(**_SETTINGS)
data_app = typer.Typer(**_SETTINGS)
app.add_typer(data_app, name="data", help="Data sets: download or convert them into the cache.")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(
        guarded(
            lambda: app(words, prog_name="fedbench", standalone_mode=False),
            debug="--debug" in words,
        )
    )


def _version(wanted: bool) -> None:
    if wanted:
        from fedbench import __version__

        emit(f"fedbench {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: fedbench run simclr --preset demo")
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Tune, sweep and compare federated methods that learn without labels."""
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
def run(
    spec: opt.Spec,
    preset: opt.Preset = None,
    set_: opt.Set = None,
    config: opt.Config = None,
    seed: opt.Seed = None,
    store: opt.StoreDir = None,
    workers: opt.Workers = None,
    device: opt.DeviceName = opt.Device.AUTO,
    data_dir: opt.DataDir = None,
    dry_run: opt.DryRun = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """One federated run, then its evaluation."""
    from fedbench.bench import api, run_report

    common: dict[str, Any] = {
        "preset": preset,
        "set": opt.parse_set(set_),
        "config_files": config or (),
        "seed": seed,
        "store": store,
        "data_dir": data_dir,
        "workers": workers,
        "device": device.value,
    }
    if dry_run:
        plan = api.plan_run(spec, **common)
        emit_json(plan.as_dict()) if json else emit(run_report.plan_text(plan))
        return
    with run_report.RunProgress(f"run {spec}", quiet=quiet, verbose=verbose) as progress:
        result = api.run(spec, on_round=progress, **common)
    if result.stored_before:
        note(f"run {result.run_id} was in the store already; nothing was executed")
    for text in run_report.warnings(result):
        warn(text)
    emit_json(result.as_dict()) if json else emit(run_report.summary(result))
    if result.status != "ok":
        raise typer.Exit(FAILED)
    if not (json or quiet):
        note(f"next: fedbench leaderboard{run_report.store_option(store)}")


@app.command(epilog="Example: fedbench leaderboard --grid heterogeneity --format markdown")
def leaderboard(
    grid: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the cells of this grid.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs on this data set.")
    ] = None,
    metric: opt.Metric = "linear",
    format_: opt.FormatName = opt.Format.TABLE,
    published: opt.Published = True,
    store: opt.StoreDir = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Rank what the store holds."""
    from fedbench.bench import api, board_report

    ranking = api.leaderboard(
        store, grid=grid, dataset=dataset, metric=metric, published=published
    )
    for problem in ranking.problems:
        warn(problem)
    if not ranking.board.groups and not quiet:
        note(board_report.nothing_yet(store, grid))
    board_report.show(ranking, opt.Format.JSON if json else format_, quiet=quiet)


@app.command(epilog="Example: fedbench partition --preset cross-device --labels balanced:50000:10")
def partition(
    preset: opt.Preset = None,
    set_: opt.Set = None,
    config: opt.Config = None,
    seed: opt.Seed = None,
    labels: opt.Labels = None,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Show how a preset deals its data to clients."""
    from fedbench.bench import api, listings

    deal = api.partition(
        preset=preset,
        set=opt.parse_set(set_),
        config_files=config or (),
        seed=seed,
        data_dir=data_dir,
        labels=labels,
    )
    emit_json(deal.as_dict()) if json else listings.show_deal(deal)


@app.command(epilog="Example: fedbench config simclr+uv --preset cross-device --yaml > mine.yaml")
def config(
    spec: opt.Spec,
    preset: opt.Preset = None,
    set_: opt.Set = None,
    config: opt.Config = None,
    seed: opt.Seed = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="A file that --config takes.")] = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Show the configuration and where each value comes from."""
    from fedbench.bench import api, listings

    resolved = api.resolve(
        spec, preset=preset, set=opt.parse_set(set_), config_files=config or (), seed=seed
    )
    if json:
        emit_json(listings.config_record(resolved))
    elif yaml:
        emit(listings.config_yaml(resolved))
    else:
        listings.show_config(resolved)


@app.command(epilog="Example: fedbench methods --json")
def methods(json: opt.Json = False, debug: opt.Debug = False) -> None:
    """List methods and add-ons with their hyperparameters."""
    _list("methods", json)


@app.command(epilog="Example: fedbench presets")
def presets(json: opt.Json = False, debug: opt.Debug = False) -> None:
    """List presets: named, complete settings."""
    _list("presets", json)


@app.command(epilog="Example: fedbench grids")
def grids(json: opt.Json = False, debug: opt.Debug = False) -> None:
    """List grids that can be swept."""
    _list("grids", json)


@app.command(epilog="Example: fedbench spaces --json")
def spaces(json: opt.Json = False, debug: opt.Debug = False) -> None:
    """List search spaces: what can be tuned."""
    _list("spaces", json)


@app.command(epilog="Example: fedbench datasets")
def datasets(
    data_dir: opt.DataDir = None, json: opt.Json = False, debug: opt.Debug = False
) -> None:
    """List data sets, and how to get them."""
    _list("datasets", json, data_dir)


def _list(kind: str, json: bool, data_dir: Path | None = None) -> None:
    from fedbench.bench import listings

    records = listings.records(kind, data_dir)
    emit_json(records) if json else show_table(*listings.table(kind, records))


@data_app.command(epilog="Example: fedbench data prepare cifar10")
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set, or hub:PATH, folder:PATH.")],
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Download or convert a data set into the cache, and check every byte of it."""
    from fedbench.bench import listings
    from fedbench.bench.data.datasets import prepare as prepare_dataset

    with listings.DecodingProgress(name, quiet=quiet) as progress:
        prepared = prepare_dataset(name, data_dir, progress=progress)
    listings.show_record(prepared, json)


@app.command(epilog="Example: fedbench export 0123456789abcdef0123 encoder.safetensors")
def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="Row id of a run in the store.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .safetensors.")],
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Write a run's encoder as .safetensors, with a JSON card."""
    from fedbench.bench import api, listings

    listings.show_record(api.export_encoder(run_id, file, store=store, data_dir=data_dir), json)


if __name__ == "__main__":
    main()

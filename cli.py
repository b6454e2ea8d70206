"""The `fedbench` command: parse the command line, call a function of `fedbench`, print the result.

Nothing heavy is imported here, so that `--help` is quick: names of `fedbench` load when first used.
A command returns None or its exit code.
"""

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import fedbench
from fedbench.bench.execution import fork_server
from fedbench.bench.experiment.common_options import (
    DataDir,
    DryRun,
    Execution,
    Folders,
    Places,
    Settings,
    Sources,
    StoreDir,
    Workers,
    as_path,
)
from fedbench.bench.results.choice import Board, Chosen, Ranked
from fedbench.bench.system import scratch
from fedbench.bench.system.arguments import Option, grouped, one_of
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.terminal import options as opt
from fedbench.bench.terminal import show_lists, show_results, show_runs, show_tuning
from fedbench.bench.terminal.console import Status, emit, note, suggest, warn
from fedbench.bench.terminal.exit_codes import DIFFERENT, FAILED, UNREADABLE, run_command
from fedbench.bench.terminal.options import argument
from fedbench.bench.terminal.progress import (
    DecodingProgress,
    RunProgress,
    StudyProgress,
    SweepProgress,
)
from fedbench.bench.terminal.scaffold import Kind, write_start
from fedbench.bench.terminal.tables import show_records
from fedbench.bench.terminal.units import count
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.options import Cells, Search

_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,  # rich would double the time of --help and box every error
    "pretty_exceptions_enable": False,
    "invoke_without_command": True,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app, data_app = typer.Typer(**_SETTINGS), typer.Typer(**_SETTINGS)
app.add_typer(data_app, name="data")
Code = int | None
"""Exit code of a command; None = 0."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0][0:1].isalpha() and "--help" not in words:
        scratch.delete_leftovers()
    parse = partial(app, words, prog_name="fedbench", standalone_mode=False)
    continues = words[:1] in (["run"], ["tune"], ["sweep"]) and "--dry-run" not in words
    sys.exit(run_command(parse, debug="--debug" in words, continues=continues))


def command(
    example: str, *, of: typer.Typer = app, **settings: Any
) -> Callable[[Callable[..., Code]], Callable[..., Code]]:
    """Register a function as a command whose help ends in an example."""

    def register(function: Callable[..., Code]) -> Callable[..., Code]:
        entry = {"epilog": f"Example: {example}", "cls": opt.GroupedCommand, **settings}
        call = grouped(function, annotated=True)
        signature = inspect.signature(call)
        checks = {
            name: option.check
            for name, each in signature.parameters.items()
            if (option := opt.option_of(each.annotation)) is not None and option.check is not None
        }

        # Not as callbacks of Typer, which turns what that of a repeated option returns into a list.
        @wraps(call)
        def checked(**given: Any) -> Code:
            return call(**given | {name: check(given[name]) for name, check in checks.items()})

        parameters = [
            each.replace(annotation=opt.for_typer(each.annotation), kind=each.KEYWORD_ONLY)
            for each in signature.parameters.values()
        ]
        checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        checked.__annotations__ = {each.name: each.annotation for each in parameters}
        return of.command(**entry)(checked)

    return register


@app.callback(epilog="Example: fedbench run simclr --preset demo")
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
) -> None:
    """Tune, sweep and compare federated methods that learn from images without labels."""
    if version:
        emit(f"fedbench {fedbench.__version__}")
        raise typer.Exit
    _help_without_command(context)


@data_app.callback()
def _data(context: typer.Context) -> None:
    """Prepare data sets, and list their training and test images."""
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        note(context.get_help())
        raise typer.Exit(2)


# Training


@command("fedbench run simclr+uv --set data.alpha=1.0 --seed 3 --json")
def run(
    spec: opt.Spec,
    execution: Execution,
    settings: Settings,
    places: Places,
    output: opt.Output,
    dry_run: DryRun = False,
) -> Code:
    """Train one method, then evaluate its encoder."""
    common = opt.values(settings, places)
    if dry_run:
        viewers = execution.track or ()
        plan = fedbench.plan_run(spec, workers=execution.workers, track=viewers, **common)
        output.show(plan, show_runs.show_plan)
        return None
    if execution.lanes is None:  # the server imports torch while this process does
        fork_server.start_early(execution.workers, places.device)
    with RunProgress(f"run {spec}", **output.verbosity) as progress:
        result = fedbench.run(spec, on_progress=progress, **vars(execution), **common)
    if result.stored_before and result.repeated is None:
        note(f"run {result.run_id} was in the store already; nothing was executed")
    show_runs.note_outdated(result.outdated, again=execution.again)
    warn(*show_runs.warnings(result.row))
    output.show(result, show_runs.show_result)
    if output.suggests:
        suggest("fedbench leaderboard", places.store)
    repeated = result.repeated
    return DIFFERENT if repeated is not None and repeated.verdict == "different" else None


@command("fedbench tune simclr+uv --trials 24 --seeds-per-trial 2")
def tune(
    spec: opt.Spec,
    search: Search,
    settings: Settings,
    cluster: Cluster,
    places: Places,
    output: opt.Output,
) -> Code:
    """Search for good hyperparameters without using labels."""
    with StudyProgress(f"tune {spec}", search.scored_by, **output.verbosity) as progress:
        given = opt.values(search, settings, places, cluster)
        result = fedbench.tune(spec, on_progress=progress, **given)
    again = search.again and not search.dry_run
    show_runs.note_outdated(result.outdated, again=again)
    output.show(result, show_tuning.show_study)
    if result.repeated:
        return DIFFERENT
    if (result.failed or not (result.best or result.doubts)) and not search.dry_run:
        return FAILED
    if output.suggests and result.config_file is not None:
        note(show_tuning.advice(result, settings, places.store))
    return None


@command("fedbench sweep --grid heterogeneity --seeds 0,1,2")
def sweep(
    grid: opt.Grid,
    cells: Cells,
    sources: Sources,
    cluster: Cluster,
    places: Places,
    output: opt.Output,
) -> Code:
    """Run what a grid lists and the store has not."""
    with SweepProgress(f"sweep {grid}", **output.verbosity) as progress:
        given = opt.values(cells, sources, places, cluster)
        result = fedbench.sweep(grid, on_progress=progress, **given)
    show_runs.note_outdated(result.outdated, again=cells.again and not cells.dry_run)
    if result.diverged:
        warn(f"{count(result.diverged, 'run')} diverged: {show_runs.DIVERGED}")
    output.show(result, show_tuning.show_sweep)
    if result.failed and not cells.dry_run:
        return FAILED
    if any(each.verdict == "different" for each in result.repeated):
        return DIFFERENT
    if output.suggests and not cells.dry_run:
        suggest(f"fedbench leaderboard --grid {shlex.quote(grid)}", places.store)
    return None


# Results


@command("fedbench runs --method simclr --where data.alpha=0.1")
def runs(filters: opt.Filters, output: opt.Output, store: StoreDir = None) -> None:
    """List stored runs, newest first."""
    listing = fedbench.runs(store, **vars(filters))
    warn(*listing.problems)
    output.show(listing, show_runs.show_listing)


@command("fedbench show 01234567")
def show(run_id: opt.RunId, output: opt.Output, store: StoreDir = None) -> None:
    """Show one stored run: results, curves, configuration, cost."""
    output.show(fedbench.describe(run_id, store), show_runs.show_description)


@command("fedbench leaderboard --grid heterogeneity --format markdown")
def leaderboard(
    board: Board,
    output: opt.Output,
    format_: Annotated[
        opt.Format | None, Option("Format of the output; default: table.", "--format")
    ] = None,
    store: StoreDir = None,
) -> None:
    """Rank the runs in the store."""
    if output.json and format_ not in (None, "json"):
        raise ConfigError(f"--json and --format {format_} exclude each other; give one")
    ranking = fedbench.leaderboard(store, **vars(board))
    warn(*ranking.problems)
    if ranking.nothing and not output.quiet:
        note(ranking.nothing)
    form = "json" if output.json else format_ or "table"
    show_results.show_leaderboard(ranking, form, quiet=output.quiet)
    if form == "table" and output.suggests and not ranking.nothing:
        of_tables = [{e.method: 0 for e in group.entries} for group in ranking.board.groups]
        methods = next(([*each] for each in of_tables if len(each) > 1), [])
        asked = {name: getattr(board, name) for name in vars(Ranked())}
        options = [f"--{name}={of}" for name, of in asked.items() if of != getattr(Ranked, name)]
        pair = shlex.join(["fedbench", "compare", *methods[:2], *options])
        suggest(pair if methods else "fedbench report results.html", store)


@command("fedbench compare simclr byol --preset laptop")
def compare(
    first: opt.Compared,
    second: opt.ComparedTo,
    chosen: Ranked,
    output: opt.Output,
    store: StoreDir = None,
) -> None:
    """Compare two methods, or two runs: difference, interval, test, what differs."""
    result = fedbench.compare(first, second, store, **vars(chosen))
    warn(*result.problems)
    output.show(result, show_results.show_comparison)


@command("fedbench report results.html --grid heterogeneity")
def report(
    chosen: Chosen,
    folders: Folders,
    output: opt.Output,
    file: Annotated[Path, argument("File to write; its name ends in .html.", "FILE")] = Path(
        "report.html"
    ),
    images: opt.Images = True,
) -> None:
    """Write one web page with charts and tables. It needs no network."""
    with Status("report", quiet=output.quiet) as status:
        given = opt.values(chosen, folders)
        result = fedbench.report(file, images=images, tell=status.update, **given)
    warn(*result.problems)
    output.show(result)


@command("fedbench studies simclr-810893d84f")
def studies(output: opt.Output, study: opt.StudyId = None, store: StoreDir = None) -> None:
    """Show tuning studies: trials, cost, correlations."""
    views = fedbench.studies(store)
    warn(*views.problems)
    if study is not None:
        known = {view.study_id: view for view in views}
        one_of("study", known)(study)
        output.show(known[study], show_tuning.show_stored_study)
    else:
        output.show(views, show_tuning.show_studies)


@command("fedbench figures 0123456789abcdef0123")
def figures(
    run_ids: opt.RunIds,
    folders: Folders,
    output: opt.Output,
    out: Annotated[Path, Option("Folder to write files to.", metavar="DIR")] = Path("figures"),
) -> None:
    """Draw angles, t-SNE maps and nearest neighbours of runs."""
    drawn = fedbench.figures(run_ids, out, **vars(folders))
    output.show(drawn, lambda found: emit("\n".join(map(str, found.files))))


@command("fedbench export 0123456789abcdef0123 encoder.onnx")
def export(
    run_id: Annotated[str, argument("Run id, exported .safetensors, or METHOD@PRESET.", "RUN_ID")],
    file: Annotated[Path, argument("File or, without an ending, folder to write.", "FILE")],
    folders: Folders,
    output: opt.Output,
) -> None:
    """Write an encoder as .safetensors, .pt2, .onnx or .pth, or a folder for the Hub."""
    exported = fedbench.export_encoder(run_id, file, **vars(folders))
    output.show(exported)
    if output.suggests and exported.card.name == "README.md":
        suggest(shlex.join(["hf", "upload", "OWNER/NAME", str(file)]))


@command("fedbench reproduce 0123456789abcdef0123")
def reproduce(
    run_id: opt.RunId,
    places: Places,
    output: opt.Output,
    data: opt.DataName = None,
    keep: Annotated[
        Path | None, Option("Store for the new run; default: discard it.", metavar="DIR")
    ] = None,
    workers: Workers = None,
) -> Code:
    """Repeat a stored run and compare every bit of its result."""
    with RunProgress(f"reproduce {run_id}", **output.verbosity) as progress:
        result = fedbench.reproduce(
            run_id, data_name=data, keep=keep, workers=workers, on_round=progress, **vars(places)
        )
    output.show(result, show_results.show_reproduction)
    return DIFFERENT if result.verdict == "different" else None


@command("fedbench merge ~/anna/leaderboards ~/ben/leaderboards")
def merge(
    stores: Annotated[list[Path], argument("Folders of the stores to merge.", "STORE…")],
    output: opt.Output,
    dry_run: DryRun = False,
    store: StoreDir = None,
) -> None:
    """Merge other stores into one, and refuse results that differ.

    Other bits from another platform are kept beside.
    """
    merged = fedbench.merge(stores, store, dry_run=dry_run)
    warn(*(f"left out: {problem}" for problem in merged.problems))
    output.show(merged)


@command("fedbench verify --store leaderboards --rerun 2")
def verify(
    places: Places,
    output: opt.Output,
    rerun: Annotated[
        int, Option("Also run N rows again, chosen by a hash of all ids.", limits={"min": 0})
    ] = 0,
    data: opt.DataName = None,
    workers: Workers = None,
) -> Code:
    """Check every file of the store; with --rerun also run rows again."""
    result = fedbench.verify(
        rerun=rerun,
        data_name=data,
        workers=workers,
        on_rerun=lambda run_id: RunProgress(f"reproduce {run_id}", **output.verbosity),
        **vars(places),
    )
    output.show(result, show_results.show_verification)
    return UNREADABLE if result.damaged else DIFFERENT if result.differ else None


# Settings and data


@command("fedbench config simclr+uv --preset cross-device --yaml > mine.yaml")
def config(
    spec: opt.Spec,
    settings: Settings,
    output: opt.Output,
    yaml: Annotated[bool, Option("Print YAML that --config accepts.", "--yaml")] = False,
    data_dir: DataDir = None,
) -> None:
    """Show the configuration and where each value comes from."""
    resolved = fedbench.resolve(spec, data_dir=data_dir, **vars(settings))
    if yaml and not output.json:
        emit(show_lists.config_yaml(resolved))
    else:
        output.show(resolved, show_lists.show_config)


@command("fedbench explain client.lr")
def explain(
    key: Annotated[str, argument("Dotted name of a value, such as client.lr.", "KEY")],
    output: opt.Output,
    spec: opt.ShownSpec = None,
) -> None:
    """Explain one value: meaning, range, value in each preset."""
    found = {"explanations": fedbench.explain(key, spec)}
    output.show(found, show_lists.show_explanations)


@command("fedbench partition --preset cross-device --labels balanced:50000:10")
def partition(
    settings: Settings,
    output: opt.Output,
    labels: opt.Labels = None,
    data_dir: DataDir = None,
    out: opt.PartitionOut = None,
) -> None:
    """Show how the clients of a preset share its data."""
    partition = fedbench.partition(labels=labels, data_dir=data_dir, out=out, **vars(settings))
    output.show(partition, show_lists.show_partition)


@command("fedbench methods simclr+uv")
def methods(output: opt.Output, spec: opt.ShownSpec = None) -> None:
    """List methods and add-ons, or show one and its fields."""
    if spec is None:
        _show_list("methods", output)
    else:
        output.show(show_lists.spec_records(spec), show_lists.show_spec)


def _add_list(kind: str, example: str, summary: str) -> None:
    @command(f"fedbench {kind} {example}", name=kind, help=summary)
    def show(output: opt.Output, name: opt.ListedName = None) -> None:
        if name is None:
            _show_list(kind, output)
            return
        known = {record["name"]: record for record in show_lists.records(kind)}
        one_of(kind.removesuffix("s"), known)(name)
        output.show(known[name], show_lists.show_one)


_add_list("presets", "one-gpu", "List presets: named, complete configurations; or show one.")
_add_list("grids", "scaling", "List grids that can be swept, or show one.")
_add_list("spaces", "byol", "List search spaces: hyperparameters that can be tuned; or show one.")
_add_list(
    "objectives",
    "lidar",
    """List the scores that need no label, or show one.

    Bytes are what a client uploads at 128 dimensions.""",
)


@command("fedbench datasets")
def datasets(output: opt.Output, data_dir: DataDir = None) -> None:
    """List data sets and how to get them."""
    _show_list("datasets", output, data_dir)


def _show_list(kind: str, output: opt.Output, data_dir: Path | None = None) -> None:
    output.show(show_lists.records(kind, data_dir), partial(show_lists.show_list, kind))


@command("fedbench data prepare cifar10", of=data_app)
def prepare(
    name: opt.DatasetName,
    output: opt.Output,
    set: opt.ReadingSet = None,
    preview: opt.Preview = None,
    data_dir: DataDir = None,
) -> None:
    """Download or convert a data set into the cache, verify it, and show what it holds."""
    with DecodingProgress(name, quiet=output.quiet) as progress:
        prepared = fedbench.prepare_data(
            name, set=set, data_dir=data_dir, preview=preview, on_progress=progress
        )
    output.show(prepared, show_lists.show_prepared)


@command("fedbench data split file:images.csv > split.csv", of=data_app)
def split(
    name: opt.DatasetName,
    output: opt.Output,
    set: opt.ReadingSet = None,
    data_dir: DataDir = None,
) -> None:
    """Print as CSV which images are for training and which for testing."""
    images = fedbench.split_data(name, set=set, data_dir=data_dir)
    records = images.astype(object).where(images.notna(), None).to_dict("records")
    output.show(records, lambda _: emit(images.to_csv(index=False).rstrip()))


@command("fedbench new method my-method")
def new(
    kind: Annotated[
        Kind,
        argument(
            "What a package brings (method, objective, backbone), or what a script runs on (slurm,"
            " kubernetes, machine: one with several GPUs).",
            "KIND",
        ),
    ],
    name: Annotated[str, argument("Its name, or the job's, such as my-method.", "NAME")],
    output: opt.Output,
    out: Annotated[
        Path | None, Option("Folder to make; default: NAME, here.", metavar="DIR")
    ] = None,
) -> None:
    """Write what works, to start from: a package with its test, or a script for a cluster."""
    files, following = write_start(kind, name, out)
    output.show([str(file) for file in files], lambda paths: emit("\n".join(paths)))
    if output.suggests:
        suggest(following)


@command("fedbench doctor --address auto")
def doctor(
    folders: Folders,
    output: opt.Output,
    address: opt.Address = None,
    gpu: Annotated[
        bool, Option("Make tiny runs on the GPU too, about a minute, and say what holds.", "--gpu")
    ] = False,
) -> Code:
    """Check versions, devices, memory, store, data and Ray."""
    from fedbench.bench.tuning.doctor import checkup

    store, data_dir = fedbench.open_store(folders.store), as_path(folders.data_dir)
    result = checkup(store, data_dir, address, gpu=gpu)
    found = list(map(vars, result.checks))
    output.show(result, lambda _: show_records(found, ("status", "name", "detail", "remedy")))
    return result.exit_code


if __name__ == "__main__":
    main()

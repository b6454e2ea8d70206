"""The command `fedbench figures`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedbench.bench import cli_options as opt
from fedbench.bench.cli_groups import Output, grouped
from fedbench.bench.console import emit, emit_json


class Form(StrEnum):
    """Forms of a picture."""

    PNG = "png"
    SVG = "svg"
    BOTH = "both"


RunIds = Annotated[
    list[str],
    typer.Argument(metavar="RUN_ID…", help="Row ids, or how they begin; drawn side by side."),
]
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")]
FormName = Annotated[Form, typer.Option("--format", help="Form of the pictures.")]
Images = Annotated[
    int, typer.Option("--images", min=10, metavar="N", help="Test images on each map, at most.")
]
ClientId = Annotated[
    int | None,
    typer.Option(
        "--client", min=0, metavar="K", help="Whose encoder is mapped, where encoders differ."
    ),
]


def add_figures(app: typer.Typer) -> None:
    """Give an application the command."""
    epilog = "Example: fedbench figures 0123456789abcdef0123 --out figures"
    app.command("figures", epilog=epilog)(_figures)


@grouped
def _figures(
    run_ids: RunIds,
    *,
    out: Folder = Path("figures"),
    format_: FormName = Form.BOTH,
    images: Images = 1000,
    client: ClientId = None,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: Output,
) -> None:
    """Draw angles between classes and t-SNE maps of test features."""
    from fedbench.bench import api_figures

    made = api_figures.figures(
        run_ids,
        out,
        forms=("png", "svg") if format_ is Form.BOTH else (format_.value,),
        num_images=images,
        client_id=client,
        store=store,
        data_dir=data_dir,
    )
    if output.json:
        emit_json(made.as_dict())
    else:
        emit("\n".join(str(file) for file in made.files))

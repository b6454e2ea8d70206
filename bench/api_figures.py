"""What `fedbench figures` does, as a function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.bench.api import as_path, open_store

if TYPE_CHECKING:
    from fedbench.bench.figures.files import Figures
    from fedbench.bench.results.store import Store


def figures(
    run_ids: Sequence[str],
    folder: Path | str = "figures",
    *,
    forms: Sequence[str] = ("png", "svg"),
    num_images: int = 1000,
    client_id: int | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Figures:
    """Draw angles between classes and t-SNE maps of test features of finished runs.

    Args:
        run_ids: row ids; runs stand side by side in this order.
        folder: where `angles`, `tsne` and `geometry.json` are written.
        forms: `png`, `svg` or both.
        num_images: test images on each map, at most.
        client_id: whose encoder is mapped where encoders differ; None = the first evaluated one.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: if the store has no such run, or no checkpoint of it.
        ConfigError: without runs, or for a client or a form that does not exist.
    """
    from fedbench.bench.figures.files import write_figures

    return write_figures(
        open_store(store),
        run_ids,
        Path(folder).expanduser(),
        forms=forms,
        num_images=num_images,
        client_id=client_id,
        data_dir=as_path(data_dir),
    )

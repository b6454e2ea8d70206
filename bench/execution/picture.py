"""The matplotlib figure that all charts are drawn on; a notebook shows it without pyplot."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbench.bench.system.files import atomic_write_bytes

# Else ids in an SVG are random, and its letters are drawn as shapes.
_SVG: Any = {"svg.hashsalt": "fedbench", "svg.fonttype": "none"}


class Picture(Figure):
    """A figure of a width and a height in inches."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=150, layout="constrained")

    def panels(self, number: int, columns: int | None = None) -> list[Axes]:
        """Return so many panels, with so many beside each other; None = all of them."""
        columns = min(number, columns or number)
        every = self.subplots(-(-number // columns), columns, squeeze=False).flatten().tolist()
        for axes in every[:number]:
            axes.spines[["top", "right"]].set_visible(False)
        for axes in every[number:]:
            axes.set_axis_off()
        return every[:number]

    def explain(self, axes: Axes, place: str = "center", **more: Any) -> None:
        """Write what the colours of a panel mean on the right of all."""
        names, loc = axes.get_legend_handles_labels(), f"outside right {place}"
        self.legend(*names, **{"frameon": False, "loc": loc, **more})

    def write(self, file: Path) -> tuple[Path, ...]:
        """Write files of this name as .png and .svg; equal pictures give equal bytes."""
        files = tuple(file.with_name(f"{file.name}.{form}") for form in ("png", "svg"))
        with mpl.rc_context(_SVG):
            for path, key in zip(files, ("Software", "Date"), strict=True):  # neither is written
                self.savefig(out := io.BytesIO(), format=path.suffix[1:], metadata={key: None})
                atomic_write_bytes(path, out.getvalue())
        return files

    def _repr_png_(self) -> bytes:
        self.savefig(out := io.BytesIO(), format="png")
        return out.getvalue()


def colours(count: int) -> Sequence[Any]:
    """Return so many colours, up to twenty of which can be told apart."""
    if count <= 20:
        return mpl.color_sequences["tab10" if count <= 10 else "tab20"][:count]
    return [mpl.colormaps["hsv"](place) for place in np.linspace(0, 1, count, endpoint=False)]

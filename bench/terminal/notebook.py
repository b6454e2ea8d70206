"""Output of a notebook's cell that is replaced as work goes on."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class CellOutput:
    """A part of the running cell's output; it needs no widgets."""

    def __init__(self) -> None:
        from IPython.display import display

        # tqdm, which optuna imports for bars that are not drawn, asks for ipywidgets.
        warnings.filterwarnings("ignore", "IProgress not found")
        show: Any = display  # which has no types
        self._handle = show({"text/plain": ""}, raw=True, display_id=True)

    def update(self, renderable: RenderableType) -> None:
        """Show something of rich in place of what is shown."""
        from rich.jupyter import JupyterMixin

        class Shown(JupyterMixin):
            def __rich__(self) -> RenderableType:
                return renderable

        self._handle.update(Shown())

    def stop(self) -> None:
        """Show nothing any more."""
        self._handle.update({"text/plain": ""}, raw=True)

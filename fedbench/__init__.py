"""fedbench: tune, sweep and compare federated methods that learn without labels.

    import fedbench

    result = fedbench.run("simclr", preset="demo", seed=0)
    result.metrics["linear_acc"]
    fedbench.leaderboard().to_frame()

Each function does what the command of the same name does, returns a record, raises `FedbenchError`
and prints nothing. Importing fedbench loads none of its parts; the first use of a name does.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.5.0"

if not Path(__file__).with_name("bench").is_dir():
    raise ImportError(
        "fedbench/bench is no folder: this checkout has no symbolic links. Clone again with"
        " git -c core.symlinks=true clone"
    )

# Type checkers and editors read the stub; from the same lines names are loaded here.
_MODULES = {
    name.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module != "fedbench"
    for name in statement.names
}
__all__ = sorted(["__version__", *_MODULES])


def __getattr__(name: str) -> Any:
    """Load the module of a public name when it is first used."""
    if name in ("plot", "plugin"):
        return import_module(f"fedbench.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
    value = getattr(import_module(str(_MODULES[name])), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__

"""Installed packages, and how to install what is missing."""

import sys
import traceback
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from re import match

from fedbench.bench.system.errors import ResourceError

DISTRIBUTION = "fedbench-ssl"
"""Name of the distribution; `fedbench` on PyPI is another project."""


def install_extra(extra: str) -> str:
    """Return the commands that install an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a clone pip install -e '.[{extra}]'"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def broken_package(error: BaseException) -> ResourceError | None:
    """Return the error for a package that fedbench needs and cannot import; None = another cause.

    The package is the innermost whose import was under way when the error arose; Python keeps no
    module whose import failed.
    """
    if not isinstance(error, ImportError | OSError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    importing = [f.f_globals["__name__"] for f in frames if f.f_code.co_name == "<module>"]
    tops = [name.partition(".")[0] for name in (*importing, getattr(error, "name", None) or "")]
    named = packages_distributions()
    needed = {
        found[0].lower()
        for each in requires(DISTRIBUTION) or ()
        if (found := match(r"[\w-]+", each))
    }
    broken = [
        distribution
        for name in tops
        if name not in sys.modules
        for distribution in named.get(name, [name])
        if distribution.lower() in needed
    ]
    if not broken:
        return None
    return ResourceError(
        f"the package {broken[-1]} does not import: {' '.join(str(error).split())}; install it"
        f" again for this machine (pip install --force-reinstall {broken[-1]}), or raise the limit"
        " of memory (`ulimit -v`)"
    )

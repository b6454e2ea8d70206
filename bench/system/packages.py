"""Installed packages, and how to install what is missing."""

from importlib.metadata import PackageNotFoundError, version

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

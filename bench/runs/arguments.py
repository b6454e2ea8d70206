"""Arguments that the public functions share: the sources of a configuration, and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.results.store.store import Store, open_store


@dataclass(frozen=True)
class Sources:
    """Preset, values and files of a configuration, without its seed.

    Attributes:
        preset: values to start from, by name or YAML file; None = the preset that a configuration
            file names, else `demo`.
        set: dotted names to values, over everything else.
        config_files: YAML files over the preset; a later one wins.
    """

    preset: str | None = None
    set: Mapping[str, Any] | None = None
    config_files: Sequence[Path | str] = ()


@dataclass(frozen=True)
class Settings(Sources):
    """Preset, values, files and seed of a configuration.

    Attributes:
        seed: seed of the run; for a study, of the sampler and of each trial's first run. None = the
            configuration's.
    """

    seed: int | None = None


@dataclass(frozen=True)
class Places:
    """Folders of results and data, and the device.

    Attributes:
        store: a `Store` or its folder; None = `$FEDBENCH_STORE`, else `./leaderboards`.
        data_dir: cache of data sets; None = `$FEDBENCH_DATA_DIR`, else below `~/.cache`.
        device: `auto`, `cpu` or `cuda`.
    """

    store: Store | Path | str | None = None
    data_dir: Path | str | None = None
    device: str = "auto"

    def open_store(self) -> Store:
        """Return the store; its folder need not exist."""
        return open_store(self.store)

    @property
    def cache(self) -> Path | None:
        """The cache of data sets as a path; None = the default one."""
        return as_path(self.data_dir)


def as_path(path: Path | str | None) -> Path | None:
    """Return a path with `~` replaced by the home folder; None for None."""
    return None if path is None else Path(path).expanduser()

"""Fixtures of all tests: no file of the user is read or written, one cache of data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# Slow variants that have a faster sibling, for the extended run: CI has 12 minutes for all.
EXTENDED = re.compile(
    r"test_readme.py::test_command\[fedbench tune orchestra"  # cli/test_many_runs.py tunes too
    r"|test_sweep.py::test_through_ray_two_at_a_time"
    r"|test_hostile.py::test_letters_beyond_ascii"
    r"|test_benchmarks.py::test_smoke_and_the_table_of_it"
    r"|test_store.py::test_a_thousand_rows"
    r"|test_platforms.py::test_reproduce_names_the_platforms"
    r"|test_optimizers.py::test_training_does_not_start_the_compiler"
    r"|test_shipped_grids.py::test_every_grid_under_every_preset\[(?!.*(demo|laptop|cross-silo))"
    r"|test_steps.py::test_no_cell_of_a_shipped_grid_trains_nobody"
    r"\[(?!after|heterogeneity|participation|scaling)"
    r"|test_remeasure.py::test_a_call_that_dies_while_it_takes_weights_leaves_none\[[134]"
    r"|test_remeasure.py::test_measuring_further_gives_the_row_of_a_fresh_run\[pfedae"
    r"|test_personal.py::test_damage_goes_back_a_round.*\[pfedae.*(history|checkpoint)"
    r"|test_process.py::test_a_run_outlives_its_terminal\[dumb"
    r"|test_process.py::test_letters_that_the_terminal_does_not_have"  # test_inputs.py has ASCII
    r"|test_broken_gpus.py::test_cells_after_a_cuda_failure_are_untouched"  # test_cluster.py
    r"|test_benchmarks.py::test_every_part_for_a_gpu_runs_without_one"
    r"|test_methods.py::TestEveryMethod::test_(lanes|an_interrupted|clients_of_any).*\[\w+\+"
    r"|test_methods_on_a_gpu.py::test_a_run_keeps_to_one_device.*\[\w+\+"
)


@pytest.hookimpl(tryfirst=True)  # before marks are read: extended ones, and xdist's groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run at most two slow tests at a time, since they start processes themselves.

    They come first, in two groups of whole files. Much of their time is waiting, so that a third
    worker has two cores busy with the rest.
    """
    for item in items:
        if EXTENDED.search(item.nodeid):
            item.add_marker(pytest.mark.extended)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    slow = [item for item in items if item.get_closest_marker("slow")]
    files = list(dict.fromkeys(item.path for item in slow))
    for item in slow:
        item.add_marker(pytest.mark.xdist_group(f"slow-{files.index(item.path) % 2}"))


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point everything that fedbench takes from the environment at an empty folder."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("FEDBENCH"):
                patch.delenv(name)
        patch.setenv("FEDBENCH_DATA_DIR", str(root / "data"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield root

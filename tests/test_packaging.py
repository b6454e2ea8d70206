"""Packaging: the wheel holds the tree, folders stay small, no path of a machine is shipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("bench", "methods", "search_spaces", "leaderboards")
SUFFIXES = (".py", ".yaml", ".parquet")


def tracked() -> list[Path]:
    """Return the files of the project that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


def expected() -> set[str]:
    """Return the files of the wheel: the package's three files and the linked folders' content."""
    files = {"fedbench/__init__.py", "fedbench/__main__.py", "fedbench/py.typed", "fedbench/cli.py"}
    for path in tracked():
        own_results = path.is_relative_to("leaderboards/results")  # for readers of the repository
        if path.parts[0] in SHIPPED and path.suffix in SUFFIXES and not own_results:
            files.add(f"fedbench/{path.as_posix()}")
        if path.is_relative_to("bench/results/report/assets"):
            files.add(f"fedbench/{path.as_posix()}")
    return files


@pytest.mark.slow
def test_wheel_holds_the_tree_and_installs_without_dependencies(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in tracked():
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target, follow_symlinks=False)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected()

    environment = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run([*install, "--quiet", str(wheel)], cwd=tmp_path, check=True, capture_output=True)
    where = [
        str(python),
        "-c",
        "import fedbench, pathlib; print(pathlib.Path(fedbench.__file__).parent)",
    ]
    done = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True)
    package = Path(done.stdout.strip())
    assert package.is_relative_to(environment)
    installed = {
        f"fedbench/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert installed == expected()
    assert (environment / "bin" / "fedbench").exists()


def test_links_point_at_the_real_folders() -> None:
    for name in (*SHIPPED, "cli.py"):
        link = ROOT / "fedbench" / name
        assert link.is_symlink(), f"{link} must be a relative link; check core.symlinks of your git"
        assert link.readlink() == Path("..") / name


def test_rooms_of_bench_stay_few_and_small() -> None:
    """The root shows the architecture, and no folder is too full to survey."""
    bench = [path.parts[1:] for path in tracked() if path.parts[0] == "bench"]
    assert len({parts[0] for parts in bench}) <= 15
    modules = Counter(parts[:-1] for parts in bench if parts[-1].endswith(".py"))
    assert not {"/".join(room): count for room, count in modules.items() if count > 20}


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert not [path for path in tracked() if (ROOT / path).stat().st_size > 1_000_000]


def test_no_global_seed_and_no_unsafe_load() -> None:
    forbidden = re.compile(
        r"torch\.manual_seed|np\.random\.seed|\bpickle\.load|weights_only=False|yaml\.(?:unsafe_load|full_load)"
    )
    lines = [
        f"{path}: {line.strip()}"
        for path in tracked()
        if path.suffix == ".py" and path.parts[0] in ("bench", "methods", "cli.py")
        if path != Path("bench/system/seeding.py")
        for line in (ROOT / path).read_text().splitlines()
        if forbidden.search(line)
    ]
    assert not lines

"""Packaging: the wheel holds the tree, folders stay small, no path of a machine is shipped."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import fedbench
from fedbench.bench.config import BENCHMARK_VERSION

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("bench", "methods", "search_spaces", "leaderboards")
SUFFIXES = (".py", ".yaml", ".parquet")
OWN_RESULTS = [
    f"leaderboards/{name}"
    for name in ("results", "selection", "confirmation", "start", "studies", "tables")
]
"""For readers of the repository, and not in the wheel."""

_VERSIONED = {
    "pyproject.toml": r'(?m)^version = "(.*?)"',
    "CITATION.cff": r"(?m)^version: (.*)",
    "docs/cluster.md": r"fedbench_ssl-(.*?)-py3",
}


def tracked() -> list[Path]:
    """Return the files of the project that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


def expected() -> set[str]:
    """Return the files of the wheel: the package's own files and the linked folders' content."""
    files = {
        f"fedbench/{name}.py"
        for name in ("__init__", "__main__", "cli", "federation", "plot", "plugin")
    }
    files |= {"fedbench/__init__.pyi", "fedbench/py.typed"}
    files |= {"fedbench/bench/config/defaults.json", "fedbench/bench/execution/hub.md"}
    for path in tracked():
        own_results = any(path.is_relative_to(folder) for folder in OWN_RESULTS)
        if path.parts[0] in SHIPPED and path.suffix in SUFFIXES and not own_results:
            files.add(f"fedbench/{path.as_posix()}")
        shipped = path.parent == Path("leaderboards/encoders") and path.suffix != ".md"
        folders = ("bench/results/report/assets", "bench/terminal/templates")
        shipped |= path.stem == "fashion_small"
        if any(map(path.is_relative_to, folders)) or shipped:
            files.add(f"fedbench/{path.as_posix()}")
    return files


@pytest.mark.slow
def test_wheel_holds_the_tree_and_a_command(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in tracked():
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target, follow_symlinks=False)
    # First an archive of the sources, then the wheel from it, as an upload to PyPI is made.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fedbench_ssl-*.whl")
    (archive,) = tmp_path.glob("fedbench_ssl-*.tar.gz")
    assert archive.stat().st_size < 12_000_000  # encoders are 9 MB of it
    with zipfile.ZipFile(wheel) as content:
        (name,) = (n for n in content.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(content.read(name), validate=True)  # what PyPI checks
        kind = metadata.name, metadata.description_content_type
        assert kind == ("fedbench-ssl", "text/markdown")
        assert metadata.description == (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
        names = {name for name in content.namelist() if ".dist-info/" not in name}
        assert names == expected()
        content.extractall(tmp_path / "site")
    (points,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "\nfedbench = fedbench.cli:main\n" in points.read_text()
    alone = f"import sys; sys.path.append({str(tmp_path / 'site')!r}); import fedbench"
    subprocess.run([sys.executable, "-IS", "-c", alone], check=True)  # without dependencies


def test_the_minor_version_is_the_benchmark_version() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in _VERSIONED}
    found = {re.search(pattern, texts[name]) for name, pattern in _VERSIONED.items()}
    assert {match and match[1] for match in found} == {fedbench.__version__}
    assert fedbench.__version__.split(".")[:2] == ["0", BENCHMARK_VERSION]
    listed = re.findall(r"^\| (\d+) \|", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert listed == [str(version + 1) for version in range(int(BENCHMARK_VERSION))]


def test_the_long_description_stands_alone() -> None:
    """PyPI shows it without the repository around it."""
    text = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    assert not [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link]


def test_nothing_names_the_other_project_of_this_name() -> None:
    """`pip install fedbench` and its extras would install a package of somebody else."""
    wrong = re.compile(r"fedbench\[|(?:pip|uv|uvx|pipx) (?:install )?[\"']?fedbench(?![-/\w])")
    assert wrong.search("pip install 'fedbench[privacy]'")
    assert wrong.search("pip install fedbench")
    here = Path("tests/test_packaging.py")
    lines = [
        f"{path}: {line.strip()}"
        for path in tracked()
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".sh", ".cff", "")
        if path != here and (ROOT / path).is_file()
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()
        if wrong.search(line)
    ]
    assert not lines


def test_a_checkout_without_links_says_what_to_do(tmp_path: Path) -> None:
    """Git without symbolic links writes the target of a link into a file of its name."""
    shutil.copytree(ROOT / "fedbench", tmp_path / "fedbench", symlinks=True)
    for link in (path for path in (tmp_path / "fedbench").iterdir() if path.is_symlink()):
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import fedbench"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: fedbench/bench is no folder")
    made = subprocess.run(["make", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 2
    assert "clone again with git -c core.symlinks=true clone" in made.stderr
    assert not (tmp_path / ".venv").exists()


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
    assert not {"/".join(room): count for room, count in modules.items() if count > 21}


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

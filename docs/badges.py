"""Write the README's badges, docs/static/badges/: pictures of facts of this version, no service's.

Usage: `python docs/badges.py`; tests/test_readme.py holds the files to the facts.
"""

import tomllib
from pathlib import Path

from ruamel.yaml import YAML

from fedbench.bench.config import BENCHMARK_VERSION

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "static" / "badges"


def badges() -> dict[str, str]:
    """Return file name -> SVG."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    facts = {
        "python": f"{versions[0]} to {versions[-1]}",
        "license": project["license"],
        "benchmark": f"version {BENCHMARK_VERSION}",
    }
    return {f"{name}.svg": _badge(name, value) for name, value in facts.items()}


def _badge(name: str, value: str) -> str:
    left, right = (7 * len(text) + 12 for text in (name, value))  # 7 pixels a letter at 11
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{name}: {value}</title>"
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="#0b57d0"/>'
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{name}</text>'
        f'<text x="{left + right / 2}" y="14">{value}</text></g></svg>\n'
    )


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, picture in badges().items():
        (FOLDER / file).write_text(picture, encoding="utf-8")

"""Tables in Markdown from a folder of results: `python -m perf.table DIR`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TARGETS = Path(__file__).with_name("targets.yaml")


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Load results by the name of their work."""
    read = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return {content["work"]: content for content in read}


def targets(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Format targets beside measured values; targets without a measurement are marked."""
    yield "| what | target | median [lowest - highest] | met |"
    yield "|---|---|---|---|"
    for target in yaml.safe_load(TARGETS.read_text()):
        content = results.get(target["work"], {"values": {}, "ratios": {}})
        found = {**content["values"], **content["ratios"]}.get(target["key"])
        least = "at_least" in target
        bound = target["at_least" if least else "at_most"]
        measured, met = "not measured", "-"
        if found is not None:
            reached = found["median"] >= bound if least else found["median"] <= bound
            measured, met = written(found), "yes" if reached else "**no**"
        yield f"| {target['what']} | {'≥' if least else '≤'} {bound:,g} | {measured} | {met} |"


def everything(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Format all ratios and the seconds that they come from."""
    for name, content in results.items():
        yield f"\n**{name}** " + "; ".join(content["notes"]) + "\n"
        yield "| | median [lowest - highest] |"
        yield "|---|---|"
        for key, metrics in {**content["values"], **content["ratios"]}.items():
            yield f"| {key} | {written(metrics)} |"


def written(each: dict[str, Any]) -> str:
    """Format median and range for people."""
    if len(each["all"]) == 1:
        return _number(each["median"])
    return f"{_number(each['median'])} [{_number(each['min'])} - {_number(each['max'])}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    """Print both tables."""
    results = load(Path(sys.argv[1]))
    print("\n".join([*targets(results), *everything(results)]))


if __name__ == "__main__":
    main()

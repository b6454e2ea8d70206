"""Pin the defaults of the benchmark's version: `python tests/defaults.py`, as `make format` does.

Fields that are new are added to bench/config/defaults.json. A default that is there already changes
with `BENCHMARK_VERSION` alone, since runs are known by the values that differ from it.
"""

import json
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.method import registry

FILE = Path(__file__).parents[1] / "bench/config/defaults.json"


def current() -> dict[str, Any]:
    """Return the defaults of the code as it is."""
    sections = RunConfig().model_dump(mode="json", exclude={"spec", "seed", "method"})
    shipped = {name: entry for name, entry in registry.entries().items() if entry.ships}
    methods = {name: dict(entry.defaults) for name, entry in shipped.items()}
    return {"benchmark": BENCHMARK_VERSION, "config": flatten(sections), "methods": methods}


def with_new_fields(pinned: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the pinned defaults and those of fields that they lack; all anew for a new version."""
    if pinned.get("benchmark") != now["benchmark"]:
        return now
    known = pinned["methods"]
    methods = {name: {**fields, **known.get(name, {})} for name, fields in now["methods"].items()}
    return {**now, "config": {**now["config"], **pinned["config"]}, "methods": {**known, **methods}}


if __name__ == "__main__":
    pinned = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    text = json.dumps(with_new_fields(pinned, current()), indent=1, sort_keys=True)
    FILE.write_text(text + "\n", "utf-8")

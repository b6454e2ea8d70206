"""`fedbench doctor`."""

from __future__ import annotations

import typer

from fedbench.bench import cli_options as opt
from fedbench.bench.cli_groups import Output, grouped
from fedbench.bench.console import emit, emit_json


@grouped
def doctor(
    *,
    address: opt.Address = None,
    store: opt.StoreDir = None,
    data_dir: opt.DataDir = None,
    output: Output,
) -> None:
    """Say what this machine, or a cluster, has and lacks."""
    from fedbench.bench.api import as_path, open_store
    from fedbench.bench.doctor import checkup

    found = checkup(open_store(store), as_path(data_dir), address)
    if output.json:
        emit_json(found.as_dict())
    else:
        width = max(len(check.name) for check in found.checks)
        for check in found.checks:
            remedy = f" ({check.remedy})" if check.remedy else ""
            emit(f"{check.status:<8} {check.name:<{width}}  {check.detail}{remedy}")
    if found.exit_code:
        raise typer.Exit(found.exit_code)

"""`iid`, `natural` and `file`: clients that differ in nothing, or that the images come with."""

import numpy as np

from fedbench.bench.config.partitioners.registry import PARTITIONERS, Examples, Owners, Partitioner
from fedbench.bench.system.errors import ConfigError


def iid(examples: Examples) -> Owners:
    """Shuffle and give out one by one: sizes differ by one at most, the first are larger."""
    count = len(examples.labels)
    owners = np.empty(count, np.int32)
    owners[examples.rng.permutation(count)] = np.arange(count) % examples.num_clients
    return owners


PARTITIONERS["iid"] = Partitioner(iid, "nothing", may_leave_clients_empty=True)


def natural(examples: Examples, *, natural_column: str) -> Owners:
    """Give each value of a column, such as a writer, a client of its own.

    With fewer clients than values, whole values are shuffled and given out one by one.
    """
    assert examples.clients is not None
    values, num_clients = examples.num_groups, examples.num_clients
    if num_clients > values:
        of = f"the {values} values of data.natural_column={natural_column}"
        raise ConfigError(f"data.num_clients={num_clients} is more than {of}; lower it")
    owners = np.arange(values, dtype=np.int32)
    if num_clients < values:
        owners[examples.rng.permutation(values)] = np.arange(values) % num_clients
    return owners[examples.clients]


def file(examples: Examples, *, partition_file: str) -> Owners:
    """Give the images to the clients that a file names."""
    assert examples.clients is not None
    named = examples.num_groups
    if examples.num_clients != named:
        given = f"data.num_clients={examples.num_clients}"
        raise ConfigError(
            f"{given}, but {partition_file} names {named}; set data.num_clients={named}"
        )
    return examples.clients.astype(np.int32)


PARTITIONERS["natural"] = Partitioner(natural, "clients")
PARTITIONERS["file"] = Partitioner(file, "clients")

"""The interface of method plugins: hooks, their records, and the registry.

Methods that ship import from here and from `fedbench.bench.nn`; those of other packages from
`fedbench.plugin`, which has all of both. Start with the docstring of `Method`; its hooks say when
they run and what they may change. `register` puts a method into the registry.
"""

from fedbench.bench.config import RunConfig as RunConfig
from fedbench.bench.config import Size as Size
from fedbench.bench.data.batches import Batch as Batch
from fedbench.bench.data.batches import ClientData as ClientData
from fedbench.bench.data.views.image_ops import rotate90 as rotate90
from fedbench.bench.method.aggregator import Aggregator as Aggregator
from fedbench.bench.method.aggregator import Krum as Krum
from fedbench.bench.method.aggregator import Mean as Mean
from fedbench.bench.method.aggregator import Median as Median
from fedbench.bench.method.aggregator import TrimmedMean as TrimmedMean
from fedbench.bench.method.base import AddOn as AddOn
from fedbench.bench.method.base import Client as Client
from fedbench.bench.method.base import DataSpec as DataSpec
from fedbench.bench.method.base import Labels as Labels
from fedbench.bench.method.base import Loss as Loss
from fedbench.bench.method.base import Method as Method
from fedbench.bench.method.base import Needs as Needs
from fedbench.bench.method.base import RoundPlan as RoundPlan
from fedbench.bench.method.base import Server as Server
from fedbench.bench.method.base import Upload as Upload
from fedbench.bench.method.base import writes as writes
from fedbench.bench.method.net import Net as Net
from fedbench.bench.method.registry import register as register
from fedbench.bench.method.sharing import ACTIVATIONS as ACTIVATIONS
from fedbench.bench.method.sharing import Extra as Extra
from fedbench.bench.method.sharing import Sharing as Sharing
from fedbench.bench.method.sharing import averaged_parameters as averaged_parameters
from fedbench.bench.method.sharing import nothing_averaged as nothing_averaged
from fedbench.bench.system.errors import ConfigError as ConfigError
from fedbench.bench.system.errors import PluginError as PluginError

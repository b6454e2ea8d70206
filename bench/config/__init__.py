"""The configuration of a run: its schema and identity, dotted names, YAML files."""

from fedbench.bench.config.identity import training_settings as training_settings
from fedbench.bench.config.schema import BENCHMARK_VERSION as BENCHMARK_VERSION
from fedbench.bench.config.schema import ClientConfig as ClientConfig
from fedbench.bench.config.schema import DataConfig as DataConfig
from fedbench.bench.config.schema import EvaluationConfig as EvaluationConfig
from fedbench.bench.config.schema import ModelConfig as ModelConfig
from fedbench.bench.config.schema import RunConfig as RunConfig
from fedbench.bench.config.schema import ServerConfig as ServerConfig
from fedbench.bench.config.schema import Size as Size
from fedbench.bench.config.schema import Strict as Strict

"""The configuration of a run: its schema and identity, dotted names, YAML files."""

from fedbench.bench.config.schema import (
    BENCHMARK_VERSION,
    ClientConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    ServerConfig,
    Size,
    Strict,
    config_id,
    identity,
    row_id,
    training_id,
    training_settings,
)

__all__ = [
    "BENCHMARK_VERSION",
    "ClientConfig",
    "DataConfig",
    "EvaluationConfig",
    "ModelConfig",
    "RunConfig",
    "ServerConfig",
    "Size",
    "Strict",
    "config_id",
    "identity",
    "row_id",
    "training_id",
    "training_settings",
]

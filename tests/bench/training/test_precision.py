"""Local training in bfloat16: dtypes that stay float32, and rows it is compared with."""

from __future__ import annotations

from fedbench.bench.config import RunConfig, row_id


def test_only_the_narrow_precision_is_part_of_the_identity() -> None:
    """Rows written before the field existed keep their id."""
    config = RunConfig()
    narrow = config.model_copy(
        update={"client": config.client.model_copy(update={"precision": "bf16"})}
    )
    assert '"precision"' in config.model_dump_json()
    assert row_id(config, "r") != row_id(narrow, "r")

"""Records of the store: rows (runs), trials of tuning studies, and published numbers."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, Self

import pydantic_core
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.evaluation import metrics
from fedbench.bench.results.choice import Purpose
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.identity import canonical_json

SCHEMA_VERSION = 5
"""Raised with every new column, which is nullable or has a default; none changes its type.

Rows before 4 have other ids, and are not read.
"""
UNMOVED = 2.0**-24
"""Relative movement of weights that `float32`, of 24 binary digits, cannot tell from none."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]

COUNT: dict[str, Any] = {"unit": "count", "arrow": "int32"}
NUMBER: dict[str, Any] = {"unit": "number", "arrow": "int32"}
PARAMETERS: dict[str, Any] = {"unit": "parameters", "arrow": "int64"}
BYTES: dict[str, Any] = {"unit": "bytes", "arrow": "int64"}
SECONDS: dict[str, Any] = {"unit": "s"}
FRACTION: dict[str, Any] = {"unit": "fraction"}
SCORE: dict[str, Any] = {"unit": "score"}
JSON: dict[str, Any] = {"unit": "json"}


def _column(meaning: str, unit: dict[str, Any] | None = None, **limits: Any) -> Any:
    """Return a column with its meaning and unit; null, or `default`, where it is not given."""
    if "default_factory" not in limits:
        limits = {"default": None, **limits}
    return Field(**limits, description=meaning, json_schema_extra=unit)


_needed = partial(_column, default=...)
"""A column that every record has."""
_mapping = partial(_column, default_factory=dict)
"""Values by name; empty where there are none."""


class _Data(BaseModel):
    partition: str
    name: str = ""
    train_subset: int | None = None
    test_subset: int | None = None
    label_fraction: float = 0.0


class _Client(BaseModel):
    precision: str = ""
    compile: bool = False


class _Evaluation(BaseModel):
    num_clients: int = 1
    transfer: list[str] = []


class _Model(BaseModel):
    weights_sha256: str | None = None


class _Devices(BaseModel):
    failure: float | None = None
    profile_sha256: str | None = None


class _Settings(BaseModel):
    """What readers rely on in the configuration of a row of any version."""

    spec: str
    data: _Data
    client: _Client
    evaluation: _Evaluation
    method: dict[str, Any] = {}
    model: _Model = _Model()
    devices: _Devices = _Devices()
    federation: dict[str, Any] = {}
    server: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    code: dict[str, Any] = {}


def first_problem(error: ValidationError) -> str:
    """Return where the first error of a validation is, and what it is."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"]))[:80], first["msg"])))


_STUDY: dict[Any, str] = {
    str: "study_id spec preset sampler dataset data",
    int: "trials seeds_per_trial",
    str | None: "objective finished_at",
    dict[str, Any] | None: "space fidelity best recommended confirmation",
    list[str] | None: "cautions",
    list[dict[str, Any]]: "untrained checked",
}
"""Types of what readers rely on in `study.json`, where it has it."""
_kinds: Any = {name: (kind, None) for kind, names in _STUDY.items() for name in names.split()}
_Study: type[BaseModel] = create_model("_Study", **_kinds)


def check_study(value: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `study.json`; a ValueError if a value has another type."""
    try:
        _Study.model_validate(value, strict=True)
    except ValidationError as err:
        raise ValueError(first_problem(err)) from err
    return value


def strict_json(text: Any) -> Any:
    """Return the value of JSON that a stranger may have written.

    Raises:
        ValueError: for another text, one nested too deeply, and numbers that are not finite.
    """
    value = pydantic_core.from_json(text, allow_inf_nan=False)  # refuses deep nesting
    json.dumps(value, allow_nan=False)  # refuses 1e999, which is read as infinity
    return value


def _holds(kind: Any) -> Callable[[str], str]:
    """Return a check of a column: its texts are JSON of a kind."""
    adapter = TypeAdapter(kind)

    def check(text: str) -> str:
        try:
            adapter.validate_python(strict_json(text), strict=True)
        except ValidationError as err:
            raise ValueError(first_problem(err)) from err
        return text

    return check


class Record(BaseModel):
    """Frozen, no unknown fields, no conversions, no NaN or infinity: null means not measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Row(Record):
    """One run and its evaluation. Units are in the field metadata; accuracies are in [0, 1]."""

    # Identity
    # It names files, so that the pattern lets no `../` pass.
    row_id: str = _needed("hash of configuration with seed", pattern=r"^[0-9a-f]{20}$")
    config_id: str = _needed("the same without seed and evaluation", pattern=r"^[0-9a-f]{20}$")
    training_id: str | None = _column("the same with seed and without evaluation")
    measured_from: str | None = _column(
        "row_id of the run whose weights were evaluated instead of training them once more"
    )
    schema_version: int = _column("version of these columns", NUMBER, default=SCHEMA_VERSION, ge=4)
    benchmark_version: str = _needed("rows of two versions are not comparable")
    status: Literal["ok", "error", "diverged"] = _needed("how the run ended")
    error: str | None = _column("what went wrong, where status is error")

    # Task
    preset: str = _needed("preset that the configuration started from")
    dataset: str = _needed(
        "name of the data's content; hub:FOLDER and the like where it is not known"
    )
    dataset_revision: str = _needed("checksum of the data, which identifies them")
    partition: str = _needed("partitioner that gave the data to clients")
    alpha: float | None = _column("Dirichlet concentration; null where there is none", gt=0)
    num_clients: int = _needed("data holders", COUNT, ge=1)
    participation: float = _needed("cohort size / number of clients", FRACTION, gt=0, le=1)
    num_rounds: Count = _needed("rounds configured", COUNT)
    local_epochs: Count = _needed("passes over a client's data per round", COUNT)
    partition_hash: str = _needed("hash of who holds which example")

    # Method
    method: str = _needed("method spec, name[+addon…]")
    backbone: str = _needed("architecture of the encoder")
    norm: str = _needed("normalisation policy")
    num_parameters: Count | None = _column("encoder and heads", PARAMETERS)
    settings: dict[str, Any] = _needed(
        "what of the RunConfig has no column `config.…`: nulls, lists, empty parts", JSON
    )
    tuned: bool = _column("hyperparameters come from a study", default=False)
    study_id: str | None = _column("the study they come from")
    selection: Literal["label-free", "paper", "default", "oracle"] = _column(
        "how hyperparameters were chosen; oracle = with labels, not ranked", default="default"
    )
    purpose: Purpose = _column(
        "what the run was for; boards count evaluations, unless they are asked for others",
        default="evaluation",
    )

    # Seed
    seed: Count = _needed("all other seeds derive from it", NUMBER)

    # Metrics
    objective: float | None = _column("label-free score, align + 0.2 unif", SCORE)
    align: float | None = _column("alignment", SCORE)
    unif: float | None = _column("uniformity", SCORE)
    knn_acc: Fraction | None = _column("k-NN accuracy on the test split", FRACTION)
    linear_acc: Fraction | None = _column("linear-probe accuracy, cached features", FRACTION)
    linear_paper_acc: Fraction | None = _column(
        "linear-probe accuracy, 50-epoch protocol", FRACTION
    )
    untrained_objective: float | None = _column("objective before training", SCORE)
    untrained_knn_acc: Fraction | None = _column("k-NN accuracy before training", FRACTION)
    untrained_linear_acc: Fraction | None = _column(
        "linear-probe accuracy before training", FRACTION
    )
    std_ratio: float | None = _column(
        "mean per-dimension std of unit features times sqrt(dim); 1 = isotropic", SCORE, ge=0
    )
    collapsed: bool | None = _column("the detector's verdict on std_ratio and effective_rank")
    effective_rank: float | None = _column("effective rank of the features", SCORE, ge=0)
    final_loss: float | None = _column("mean local loss of the last round", SCORE)
    further: dict[str, float] = _mapping("every other metric, before schema 5", JSON)

    # Cost
    wall_seconds: float | None = _column("whole run with evaluation", SECONDS, ge=0)
    train_seconds: float | None = _column("rounds only", SECONDS, ge=0)
    bytes_up: Count | None = _column("client to server, whole run", BYTES)
    bytes_down: Count | None = _column("server to clients, whole run", BYTES)
    peak_memory_bytes: Count | None = _column("peak resident memory", BYTES)
    rounds_done: Count | None = _column("rounds finished", COUNT)
    resumes: Count | None = _column("times the run was taken up again", COUNT)

    # Privacy
    traffic: dict[str, Any] = _mapping(
        "messages, numbers, bytes and what they reveal, by direction and tensor group", JSON
    )
    revealing_messages: Count | None = _column(
        "messages to the server that hold something of a single image", COUNT
    )
    smallest_group: Count | None = _column(
        "images that the smallest part of any message stands for; null = a client's", COUNT
    )
    secure_sum: bool | None = _column(
        "the server needs sums over clients only, no single client's update"
    )
    epsilon: float | None = _column(
        "differential privacy of the whole run, all rounds together; null = none", ge=0
    )
    delta: float | None = _column("of epsilon", ge=0)
    epsilon_of: str | None = _column("what epsilon protects, and where")
    privacy: dict[str, Any] = _mapping("noise and budget per round behind epsilon", JSON)

    # Provenance
    started_at: datetime = _needed("start of the run, UTC")
    finished_at: datetime = _needed("end of the run, UTC")
    git_sha: str | None = _column("commit of the code, if known")
    package_version: str = _needed("version of fedbench")
    environment: dict[str, Any] = _mapping("what else is known of the environment", JSON)
    hardware: str | None = _column("processor and accelerators")
    device: str | None = _column("device that trained")
    platform: str | None = _column("name of the numeric platform that computed the run")
    platforms: list[dict[str, Any]] = _column(
        "its record with the fingerprint, and hashes of what the run computes on fixed images;"
        " several if it was resumed on another platform",
        JSON,
        default_factory=list,
    )
    argv: str | None = _column("command line")
    grid: str | None = _column("grid that the cell belongs to")
    scaled: dict[str, Any] = _mapping(
        "fields that the grid's rules changed: name to value without them", JSON
    )

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric that was measured, by name."""
        values = {name: getattr(self, name) for name in METRICS}
        return {name: v for name, v in (values | self.further).items() if v is not None}

    @property
    def unmoved(self) -> bool:
        """Whether a run that was to train ended with the weights that it began with.

        Weights that were 0 move by any learning rate, so that a movement below what `float32` can
        tell from none, `UNMOVED`, counts as none.
        """
        asked = self.num_rounds > 0 and self.local_epochs > 0
        return asked and self.metrics.get("relative_movement", UNMOVED) < UNMOVED

    @property
    def without_gradient(self) -> list[str]:
        """Trained parts of the net that the loss reached in no round."""
        found = (n.partition("no_gradient_") for n in self.further)
        return [part for before, name, part in found if name and not before]

    @property
    def config_json(self) -> str:
        """The whole configuration as JSON, as lines of a frame have it."""
        return canonical_json(self.settings)

    @property
    def code(self) -> dict[str, str]:
        """Hash of the source of whatever other packages brought to the run, by its name."""
        return dict(self.settings.get("code", {}))

    @property
    def start(self) -> str | None:
        """SHA-256 of the file that the encoder starts from; None = random init."""
        model: dict[str, str | None] = self.settings.get("model", {})
        return model.get("weights_sha256")

    @property
    def config(self) -> RunConfig:
        """The configuration of the run.

        Raises:
            StoreError: if this version of fedbench does not take it.
        """
        try:
            return RunConfig.model_validate_json(json.dumps(self.settings))
        except ValidationError as err:
            raise StoreError(
                f"run {self.row_id}: this fedbench does not take its configuration"
                f" ({first_problem(err)}); it was made by fedbench {self.package_version}"
            ) from err

    @field_validator("settings")
    @classmethod
    def _has_settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
            _Settings.model_validate(value, strict=True)
            flatten(value)
        except ValidationError as err:
            raise ValueError(first_problem(err)) from err
        except (TypeError, ConfigError) as err:  # a time, say, or a field that is given twice
            raise ValueError(str(err)) from err
        return value

    @field_validator("started_at", "finished_at")
    @classmethod
    def _to_utc(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("needs a time zone, for example datetime.now(UTC)")
        return value.astimezone(UTC)

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        if self.status != "ok":
            given = [name for name in FINAL_METRICS if getattr(self, name) is not None]
            if given:
                raise ValueError(f"a row of status {self.status!r} has no {', '.join(given)}")
        if (self.status == "error") != (self.error is not None):
            raise ValueError("error is the text of a row of status 'error', and null otherwise")
        return self


METRICS = tuple(name for name in Row.model_fields if metrics.get(name) is not None)
"""Metrics with a field in rows, in their order; all others are in `further`."""
COSTS = (
    "wall_seconds", "train_seconds", "bytes_up", "bytes_down", "peak_memory_bytes",
    "rounds_done", "resumes",
)  # fmt: skip
"""Fields of what a run took."""
FINAL_METRICS = tuple(name for name in METRICS if not name.startswith("untrained_"))
"""Those measured after the last round: null unless the run's status is `ok`."""


class Trial(Record):
    """One trial of a tuning study."""

    study_id: str = _needed("the study it belongs to")
    number: Count = _needed("position in the study, from 0", NUMBER)
    schema_version: int = _column("version of these columns", NUMBER, default=SCHEMA_VERSION, ge=1)
    status: str = _needed("how the trial ended; ok, error, diverged, stopped, refused or pruned")
    seeds: list[int] = Field(
        default_factory=list, description="seeds that were run", json_schema_extra=NUMBER
    )
    params_json: str = _column("suggested values", JSON, default="{}")
    objective: float | None = _column("mean label-free score over seeds", SCORE)
    watched_json: str = _column("metrics the search never saw", JSON, default="{}")
    seconds: float | None = _column("wall time", SECONDS, ge=0)
    error: str | None = _column("what went wrong")
    extra_json: str = _column("anything else", JSON, default="{}")

    _numbers = field_validator("watched_json")(_holds(dict[str, float | bool | None]))
    _objects = field_validator("params_json", "extra_json")(_holds(dict[str, Any]))


def to_trial(study_id: str, number: int, record: Mapping[str, Any]) -> Trial:
    """Return a record as a trial; keys that are no columns go to `extra_json`.

    Raises:
        StoreError: a value that a column refuses, or that JSON cannot hold.
    """
    rest = {**record, "study_id": study_id, "number": number}
    try:
        for name in {"params", "watched"} & rest.keys():
            rest[f"{name}_json"] = canonical_json(rest.pop(name))
        columns = Trial.model_fields.keys() - {"schema_version", "extra_json"}
        fields = {name: rest.pop(name) for name in columns & rest.keys()}
        fields["seeds"] = [*fields.get("seeds", ())]
        return Trial(**fields, extra_json=canonical_json(rest))
    except (TypeError, ValueError) as cause:
        why = first_problem(cause) if isinstance(cause, ValidationError) else f"not JSON: {cause}"
        raise StoreError(f"trial {number} of {study_id!r}: {why}") from cause


def from_trial(trial: Trial) -> dict[str, Any]:
    """Return a trial as a record: columns, further keys, `params` and `watched` also as dicts."""
    record = trial.model_dump(exclude={"extra_json"})
    record["params"] = json.loads(trial.params_json)
    record["watched"] = json.loads(trial.watched_json)
    return {**json.loads(trial.extra_json), **record}


class PaperCell(Record):
    """One printed number with its provenance; null = not stated in the paper."""

    paper: str = _needed("short name of the paper")
    citation: str = _needed("authors, year, title")
    url: str | None = _column("where the paper can be read")
    source: str = _needed("the table, named paper_tableN")
    dataset: str = _needed("as printed")
    setting: str = _needed("the table's setting")
    method: str = _needed("as printed")
    spec: str | None = _column("the same method here; null = none here")
    metric: str = _needed("the table's column")
    value: float = _needed("in the unit below", FRACTION)
    unit: Literal["fraction", "classes", "number"] = _needed("unit of value and spread")
    printed: str = _needed("the number as printed; accuracies in percent")
    spread: float | None = _column("printed spread, in the unit of value", ge=0)
    spread_kind: Literal["standard deviation", "standard error"] | None = _column(
        "what the spread is"
    )
    n_seeds: Count | None = _column("seeds of the mean", COUNT)
    partition: str | None = _column("how clients share the data")
    alpha: float | None = _column("Dirichlet concentration", gt=0)
    num_clients: Count | None = _column("data holders", COUNT)
    participation: Fraction | None = _column("cohort size / number of clients", FRACTION)
    num_rounds: Count | None = _column("rounds", COUNT)
    local_epochs: Count | None = _column("passes over a client's data per round", COUNT)
    backbone: str | None = _column("architecture of the encoder")
    norm: str | None = _column("normalisation of the encoder")
    probe: str | None = _column("how the number was measured")
    note: str = _column("what to know before comparing", default="")
    fixed_json: str | None = _column(
        "fields of a configuration that the paper fixes, as JSON: name -> value, or list of values"
    )
    open_json: str | None = _column("all other fields, as a JSON list of names")

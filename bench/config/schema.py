"""The configuration of a run: frozen, validated once, the only way in.

Every field is addressed by its dotted name, as `client.lr` in YAML, `--set` and search spaces.
"""

import re
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
)

from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.system.errors import did_you_mean

LARGEST = 1e37
"""Limit below float32's 3.4e38: optimizers multiply, Adam above all by 1/(1 - 0.9), and torch
would refuse the factor in the middle of a run."""
SMALLEST = 1e-45
"""Smaller numbers become 0 in float32."""
LARGEST_INT = 2**31 - 1
Size = Annotated[int, Field(ge=1, le=16_384)]
"""A dimension of a tensor: features, hidden units, channels, clusters, slices."""


def fitting(value: Any) -> Any:
    """Return the value; a validator for pydantic models."""
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError(f"must be at most {LARGEST_INT:,} in size")
    if isinstance(value, float) and abs(value) > LARGEST:
        raise ValueError(f"must be at most {LARGEST:g} in size, since training is in float32")
    if isinstance(value, float) and 0 < abs(value) < SMALLEST:
        raise ValueError(f"must be at least {SMALLEST:g} in size, since training is in float32")
    return value


BENCHMARK_VERSION = "5"
"""Part of every row's identity; raised whenever the same configuration would give other results."""

if TYPE_CHECKING:  # mypy knows no Literal of names that are registered at run time
    PartitionerName = str
else:
    PartitionerName = Literal[tuple(PARTITIONERS)]


PROBES = "fedbench.probes"
"""Group of entry points whose names are further `evaluation.protocols`."""
PROTOCOLS = (
    "knn", "linear", "linear-paper", "few-shot", "mlp", "local", "angles", "finetune", "theory",
)  # fmt: skip
"""Probes that ship."""


def _known_protocol(name: str) -> str:
    if name not in PROTOCOLS and name not in (added := entry_points(group=PROBES).names):
        raise ValueError(f"is no protocol{did_you_mean(name, {*PROTOCOLS, *added})}")
    return name


Protocol = Annotated[
    str, AfterValidator(_known_protocol), WithJsonSchema({"enum": list(PROTOCOLS)})
]


class Strict(BaseModel):
    """Frozen model: no unknown fields, no NaN or infinity, no number beyond float32."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
    _fitting = field_validator("*")(fitting)


class DataConfig(Strict):
    """The data set and how clients share its training images."""

    name: str = Field("digits", description="see `fedbench datasets`; also hub:PATH, folder:PATH")
    train_subset: int | None = Field(
        None, ge=1, description="use so many training images, stratified by class; null = all"
    )
    test_subset: int | None = Field(None, ge=1, description="use so many test images; null = all")
    label_column: str | None = Field(
        None, min_length=1, description="column of a table with the labels; null = by name"
    )
    test_rows: str | None = Field(
        None,
        description="COLUMN=VALUE: rows of a table that are test images, all others train; none:"
        " no column says a split; null = columns that name splits do",
    )
    image_size: int | None = Field(
        None, ge=1, le=4096, description="side to resize images to; null = as they are, of one size"
    )
    num_clients: int = Field(8, ge=1, le=1_000_000, description="holders of training images")
    partition: PartitionerName = Field("dirichlet-balanced", description="how images go to clients")
    natural_column: str | None = Field(None, min_length=1, description="natural: column of clients")
    partition_file: str | None = Field(
        None, min_length=1, description="file: JSON, CSV or Parquet with the client of each image"
    )
    alpha: float = Field(0.1, gt=0, description="Dirichlet concentration; small = heterogeneous")
    classes_per_client: int = Field(2, ge=1, description="pathological: classes of a client")
    rotation_bins: int = Field(10, ge=1, le=360, description="rotation, joint: bins of a circle")
    rotation_alpha: float = Field(
        0.1, gt=0, description="joint: Dirichlet concentration over bins (rotation reads alpha)"
    )
    multiply_prior: bool = Field(
        True, description="hsu, rotation, joint: concentration = alpha / number of classes or bins"
    )
    legacy: bool = Field(False, description="dirichlet-balanced: as in the released code, seed 0")
    min_client_size: int = Field(0, ge=0, description="dirichlet: redraw until all have so many")
    label_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of each client's labels that exist, for methods and probes alike;"
        " 0 = methods without labels see none, references such as supervised all, probes all",
    )
    held_out: float = Field(0.0, ge=0, lt=1, description="share of images that no client gets")

    @field_validator("test_rows")
    @classmethod
    def _column_and_value(cls, value: str | None) -> str | None:
        if value is None or value == "none" or all(value.partition("=")):
            return value
        raise ValueError(f"must be COLUMN=VALUE, such as {value.rstrip('=')}=5, or none")

    @field_validator("natural_column", "partition_file")
    @classmethod
    def _given_where_needed(cls, value: str | None, info: ValidationInfo) -> str | None:
        name = info.data.get("partition")
        if value is None and name in PARTITIONERS and info.field_name in PARTITIONERS[name].reads:
            raise ValueError(f"must be given where data.partition is {name}")
        return value

    @property
    def alpha_read(self) -> float | None:
        """`alpha` where the partitioner reads it, else None."""
        return self.alpha if "alpha" in PARTITIONERS[self.partition].reads else None

    @property
    def public_name(self) -> str:
        """The name without the folder: `hub:cifar10` for `hub:/some/where/cifar10`."""
        return without_folder(self.name)


def without_folder(name: str) -> str:
    """Return the name of a data set without the folder that it lies in."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{PurePath(path).name}" if colon else name


class ModelConfig(Strict):
    """The encoder that every method shares."""

    backbone: str = Field(
        "resnet8",
        description="resnet18 (CIFAR stem), resnet8 (for CPUs), cct-4-3x2 or vit-5 (transformers),"
        " timm:NAME, torchvision:NAME, or one of another package",
    )
    width: int | None = Field(
        None, ge=1, le=2048, description="channels of the first stage, or of a token; null = usual"
    )
    stem_stride: int = Field(1, ge=1, le=2, description="first layer's stride; 2 is cheaper")
    norm: Literal["batch", "batch-local", "group"] = Field(
        "group", description="batch norm averaged, batch norm kept by each client, or group norm"
    )
    norm_groups: int = Field(2, ge=1, le=2048, description="groups of a group norm")
    head_norm: Literal["encoder", "batch", "group"] = Field(
        "encoder", description="norm of the heads; encoder: the same as the encoder's"
    )
    init: Literal["torch", "he-fan-out", "cct"] = Field(
        "torch",
        description="first weights of the encoder: torch's defaults, Kaiming normal (fan-out, ReLU)"
        " for convolutions, or for cct backbones those of CCT's release",
    )
    weights: str | None = Field(
        None,
        min_length=1,
        description="safetensors file that the encoder starts from: an exported one, METHOD@PRESET"
        " that comes with fedbench, or a state dict of timm or torchvision; null = random init",
    )
    weights_sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="hash of the file that model.weights names; null = as it is now",
    )
    trainable: str = Field(
        "all",
        description="what is trained: all, heads (the encoder is frozen), or last:N (of the encoder"
        " the last N layers or blocks, and the heads)",
    )

    @field_validator("head_norm")
    @classmethod
    def _names_each_net_once(cls, head_norm: str, info: ValidationInfo) -> str:
        if (info.data.get("norm"), head_norm) == ("batch-local", "batch"):
            raise ValueError("must be encoder or group where model.norm is batch-local")
        return head_norm

    @field_validator("weights_sha256")
    @classmethod
    def _is_of_a_file(cls, weights_sha256: str | None, info: ValidationInfo) -> str | None:
        if weights_sha256 is not None and info.data.get("weights") is None:
            raise ValueError("must be null where model.weights is")
        return weights_sha256

    @field_validator("trainable")
    @classmethod
    def _names_tensors(cls, trainable: str) -> str:
        if not re.fullmatch(r"all|heads|last:[1-9][0-9]*", trainable):
            raise ValueError("must be all, heads or last:N, N at least 1")
        return trainable

    @property
    def mixes_examples(self) -> bool:
        """True with a batch norm anywhere: a training pass then needs two examples."""
        return self.norm != "group" or self.head_norm == "batch"


class ClientConfig(Strict):
    """Local training on one client."""

    optimizer: Literal["sgd", "adam"] = Field("sgd", description="rule of a local step")
    lr: float = Field(0.03, gt=0, description="client learning rate, constant over rounds")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum, reset every round")
    weight_decay: float = Field(1e-4, ge=0, description="share of the weight added to a gradient")
    batch_size: int = Field(16, ge=1, description="examples per local step")
    local_epochs: int = Field(1, ge=0, description="passes over the client's data per round")
    keep_last_batch: bool = Field(True, description="train on an incomplete last batch too")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="precision of local training: bf16 is faster where the processor has it,"
        " tf32 is for GPUs; weights, losses and evaluation are fp32",
    )
    compile: bool = Field(
        False,
        description="passes through the net by torch.compile: for GPUs, with other rounding;"
        " takes a minute at the start, and a C++ compiler on a CPU",
    )


class DevicesConfig(Strict):
    """What the clients' devices can do; time is simulated, never this machine's."""

    profile: str = Field(
        "uniform",
        min_length=1,
        description="uniform (no device is simulated), phones, silos, or FILE.csv, a device a row",
    )
    profile_sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="hash of the CSV that devices.profile names; null = as it is now",
    )
    draw: bool = Field(False, description="CSV: draw a row for each client, some more than once")
    failure: float | None = Field(
        None, ge=0, lt=1, description="chance to drop out of a round; null = as in the profile"
    )
    correlation: float = Field(
        0.0, ge=0, le=1, description="rank correlation of slow devices with rare classes"
    )


class FederationConfig(Strict):
    """Rounds, and the share of clients in each."""

    num_rounds: int = Field(10, ge=0, le=1_000_000, description="communication rounds")
    participation: float = Field(1.0, gt=0, le=1, description="cohort size / number of clients")
    deadline: float | None = Field(
        None, gt=0, description="simulated seconds of a round; who is later is left out; null = any"
    )
    over_selection: float = Field(
        1.0, ge=1, le=100, description="clients asked / cohort size; the first ones are taken"
    )
    partial_work: bool = Field(
        False, description="slow clients make as many steps as fit before the deadline"
    )
    mode: Literal["synchronous", "buffered"] = Field(
        "synchronous", description="rounds, or a server step after every buffer_size uploads"
    )
    buffer_size: int = Field(10, ge=1, description="buffered: uploads of a server step")
    staleness_exponent: float = Field(
        0.5, ge=0, description="buffered: a change s server steps old counts (1 + s)^-exponent"
    )


class ServerConfig(Strict):
    """The server's rule from the cohort's weights to the next global weights."""

    aggregator: Literal["mean", "trimmed-mean", "median", "krum"] = Field(
        "mean", description="what makes one model of the cohort's, before the optimizer steps"
    )
    trim_fraction: float = Field(
        0.2, ge=0, lt=0.5, description="trimmed-mean: share of values left out at either end"
    )
    num_byzantine: int = Field(
        1, ge=0, description="krum: clients of a cohort whose models may be anything"
    )
    optimizer: Literal[
        "average", "momentum", "adam", "adam-reddi", "adam-flower", "yogi", "adagrad"
    ] = Field(
        "average", description="rule from the cohort's mean change to the next global weights"
    )
    lr: float = Field(1.0, gt=0, description="server learning rate; 1 with 'average' is FedAvg")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum: share of the old step kept")
    beta1: float = Field(0.9, ge=0, lt=1, description="adam (all three), yogi: decay of the mean")
    beta2: float | None = Field(None, ge=0, lt=1, description="null = adam 0.999, others 0.99")
    epsilon: float | None = Field(None, gt=0, description="null = adam 1e-8, others 1e-3")
    weighting: Literal["uniform", "examples", "steps"] = Field(
        "uniform",
        description="weights of clients in the average: equal, numbers of examples, or these with"
        " each change divided by its steps (FedNova)",
    )


class PrivacyConfig(Strict):
    """Differential privacy of whole clients, for methods whose clients send averages only."""

    clip: float | None = Field(None, gt=0, description="norm of a client's change; null = any")
    noise_multiplier: float = Field(1.0, ge=0, description="deviation of noise on the sum / clip")
    delta: float = Field(1e-5, gt=0, lt=1, description="delta for which epsilon is stated")


class EvaluationConfig(Strict):
    """Measurements at the end of a run, and during it."""

    protocols: tuple[Protocol, ...] = Field(
        ("knn", "linear"),
        description="measurements of the encoder, which read labels; of theory only label_mi does",
    )
    labels_from: Literal["clients", "held-out"] = Field(
        "clients", description="whose labelled images protocols learn from; see data.held_out"
    )
    knn_neighbours: int = Field(200, ge=1, description="knn: nearest images that vote")
    knn_temperature: float = Field(0.1, gt=0, description="knn: divisor of similarities in votes")
    linear_l2: float = Field(1e-4, ge=0, description="linear: penalty per training example")
    mlp_hidden_dim: Size = Field(512, description="mlp: hidden units")
    mlp_epochs: int = Field(100, ge=1, description="mlp: passes over the features")
    mlp_lr: float = Field(0.1, gt=0, description="mlp: learning rate of its SGD")
    probe_fractions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (1.0,), min_length=1, description="linear, mlp: shares of the labels, one by one"
    )
    objective_temperature: float = Field(0.2, gt=0, description="temperature of the uniformity")
    objective_weight: float = Field(0.2, ge=0, description="weight of uniformity beside alignment")
    objective_on: Literal["projector", "encoder"] = Field(
        "projector", description="outputs that the objective is computed on"
    )
    objective_view: str = Field("simclr-o", description="view that alignment compares to images")
    objective_max_examples: int = Field(2000, ge=2, description="examples per client, at most")
    objective_clients: int | None = Field(
        None, ge=1, description="clients that a shared encoder is scored on, at most; null = all"
    )
    objective_noise: float | None = Field(
        None, gt=0, description="noise on sums of label-free scores / sensitivity; null = none"
    )
    objectives: tuple[str, ...] = Field(
        (), description="further label-free scores, of `fedbench objectives`, as [rankme, lidar]"
    )
    transfer: tuple[str, ...] = Field(
        (),
        description="other data sets on which k-NN, linear and few-shot probes are made as well,"
        " such as [fashion-mnist, hub:DIR]",
    )
    num_clients: int = Field(10, ge=1, description="clients evaluated, where encoders differ")
    every: int = Field(0, ge=0, description="also evaluate every n rounds; 0 = at the end only")
    rounds: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="also evaluate after these rounds, such as [1, 3, 6]"
    )
    online: bool = Field(
        False,
        description="after every round a linear probe of the shared encoder, on 2,048 images",
    )
    unseen_clients: int = Field(
        0,
        ge=0,
        description="linear: clients that data.held_out is dealt to, and on which the probe is"
        " scored; 0 = none",
    )
    unseen_alpha: float | None = Field(
        None, gt=0, description="concentrations of unseen clients; null = as of the others"
    )
    untrained: bool = Field(True, description="evaluate the encoder before training as well")

    @field_validator("rounds")
    @classmethod
    def _ascend(cls, rounds: tuple[int, ...]) -> tuple[int, ...]:
        if list(rounds) != sorted({*rounds}):
            raise ValueError("must ascend, each round once")
        return rounds

    @property
    def between_rounds(self) -> bool:
        """True if there are evaluations before the last round, which need the training itself."""
        return self.every > 0 or bool(self.rounds) or self.online


class RunConfig(Strict):
    """A whole run: a method spec, its fields, the federation around it, and a seed.

    `method` holds the fields of the method by name, and those of an add-on under the add-on's
    name: `{"temperature": 0.5, "uv": {"weight": 1.0}}`.
    """

    spec: str = Field("simclr", description="name[+addon…]")
    method: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int = Field(0, ge=0, lt=2**31, description="seed of every random draw of the run")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    client: ClientConfig = ClientConfig()
    devices: DevicesConfig = DevicesConfig()
    federation: FederationConfig = FederationConfig()
    server: ServerConfig = ServerConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    code: dict[str, str] = Field(
        default_factory=dict,
        description="what other packages bring -> hash of its source; computed, never set",
    )

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `code` out where all of it ships with fedbench, as rows of before it do."""
        values: dict[str, Any] = handler(self)
        return values if self.code else {k: v for k, v in values.items() if k != "code"}

    @property
    def cohort_size(self) -> int:
        """max(1, floor(participation * num_clients)).

        The small term undoes 0.29 * 100 = 28.99….
        """
        return max(1, int(self.federation.participation * self.data.num_clients + 1e-9))

    def evaluates_after(self, done: int, total: int) -> bool:
        """Return True if the run is evaluated after a round that is not its last.

        `done` and `total` count the method's preparatory rounds, as `evaluation.every` does;
        `evaluation.rounds` leaves them out.
        """
        every, configured = self.evaluation.every, done - (total - self.federation.num_rounds)
        at_interval = every > 0 and done % every == 0
        return done < total and (at_interval or configured in self.evaluation.rounds)

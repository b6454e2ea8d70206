"""Encoders for small images, by name: ResNets, two transformers, and their norms."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import entry_points

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.nn.foreign import LIBRARIES, ForeignShape, foreign_shape, libraries_with
from fedbench.bench.nn.freezing import freeze_all_but
from fedbench.bench.nn.norms import BatchNorm1d, BatchNorm2d
from fedbench.bench.nn.weights import Start, start_of
from fedbench.bench.system.errors import ConfigError, DataError, PluginError, UnknownNameError
from fedbench.bench.system.plugins import load, load_error, origin
from fedbench.bench.system.seeding import scope


@dataclass(frozen=True)
class ResNetShape:
    """Residual blocks per stage, and channels of the first stage; each later stage doubles them."""

    blocks: tuple[int, ...]
    width: int
    description: str


@dataclass(frozen=True)
class TransformerShape:
    """Size of a vision transformer, or with convolutions of a compact convolutional one."""

    layers: int
    heads: int  # they divide the width
    width: int  # of a token
    description: str
    convolutions: int = 0  # of the tokeniser; each halves height and width


@dataclass(frozen=True)
class CustomShape:
    """An encoder of another package, in the entry-point group `fedbench.backbones`."""

    # Makes one, (B, C, H, W) -> (B, dim(width)); norms are those of `Backbone.norm`, so that
    # `model.norm` holds.
    make: Callable[["Backbone"], nn.Module]
    dim: Callable[[int], int]  # length D of a feature vector for a width
    width: int  # `model.width` where that is null
    description: str  # one line for listings


Shape = ResNetShape | TransformerShape | CustomShape | ForeignShape
PLUGINS = "fedbench.backbones"
BACKBONES: Mapping[str, ResNetShape | TransformerShape] = {
    "resnet18": ResNetShape((2, 2, 2, 2), 64, "ResNet-18 with a 3x3 stem and no max-pool, 512-d"),
    "resnet8": ResNetShape((1, 1, 1), 16, "one block in each of three stages, for CPUs, 64-d"),
    "cct-4-3x2": TransformerShape(
        4, 2, 128, "CCT-4/3x2, four layers on two convolutions, 128-d", 2
    ),
    "vit-5": TransformerShape(5, 3, 192, "five layers on some 8x8 patches without overlap, 192-d"),
}

CHANNELS_LAST = range(9, 33)
"""Widths of the first stage for which a CPU computes in channels_last.

It is a fifth faster there, while ResNet-18 with 64 channels loses a tenth in bringing its weights
into that order at every pass. With 8 channels or fewer oneDNN writes past its buffers in the
backward pass of a 1x1 convolution of stride 2 (torch 2.14: below 8 on AVX2, up to 8 on AVX-512)."""


def _redraw(module: nn.Module, init: str) -> None:
    """Draw the weights of a layer anew, as `model.init` says."""
    if isinstance(module, nn.Conv2d) and init == "he-fan-out":
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Conv2d) and init == "cct":
        nn.init.kaiming_normal_(module.weight)
    elif isinstance(module, nn.Linear) and init == "cct":
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Backbone:
    """Maker of encoders, and of norms that match them; `Method.build` gets one."""

    shape: Shape  # the ResNet, transformer, or encoder of another package or library
    width: int  # channels of the first stage, or of a token
    stem_stride: int  # of the first convolution
    in_channels: int
    # `batch`, `batch-local` or `group`; a transformer has layer norm inside, a net of another
    # library its own, and one of these in the heads on top of it.
    norm_name: str
    norm_groups: int
    image_size: tuple[int, int]  # (H, W); a transformer takes images of this size only
    head_norm_name: str | None = None  # of the heads, where it is another one; the same three
    init: str = "torch"  # `torch`, `he-fan-out` or, for a compact transformer, `cct`
    # The run's: encoders draw their weights from it alone, so that all methods start from the
    # same one; None = from the global generator, like the rest of a net.
    seed: int | None = None
    # Weights that encoders have in place of those drawn; None = random init. Not compared, like the
    # next: tensors have no hash, and `check_output` remembers backbones by theirs.
    start: Start | None = field(default=None, compare=False, repr=False)
    # Freezes a new encoder with its first weights in part, or adapts it; None = all is trained.
    prepare: Callable[[nn.Module], None] | None = field(default=None, compare=False, repr=False)

    @property
    def dim(self) -> int:
        """Length D of a feature vector."""
        match self.shape:
            case ResNetShape(blocks=blocks):
                return self.width << (len(blocks) - 1)
            case CustomShape(dim=dim):
                return dim(self.width)
        return self.width

    @property
    def norm_is_batch(self) -> bool:
        """True if the norm computes statistics over the batch, and so mixes its examples."""
        return self.norm_name != "group"

    def make(self) -> nn.Module:
        """Make a new encoder, (B, C, H, W) -> (B, D).

        Its layers draw in the order in which they are made, and then once more in this order if
        `init` is not torch's; what `prepare` draws comes last. No draw depends on norms and
        strides, which draw nothing.
        """
        with nullcontext() if self.seed is None else scope(self.seed, "encoder"):
            match self.shape:
                case CustomShape(make=make):
                    made: nn.Module = make(self)
                case ForeignShape() as shape:
                    if shape.has_batch_norm and not self.norm_is_batch:  # `group_normed`
                        raise ConfigError(
                            f"model.backbone: {shape.name} has batch norm, and the method needs a"
                            " part of its kind with group norm; choose another"
                        )
                    made = shape.make()
                case TransformerShape() as shape:
                    made = (CCT if shape.convolutions else ViT)(self, shape)
                case shape:
                    made = ResNet(self, shape)
            made.apply(partial(_redraw, init=self.init))
            if self.start is not None:  # it has all but the counters of batch norms
                made.load_state_dict(self.start.tensors, strict=False)
            if self.prepare is not None:
                self.prepare(made)
        return made

    def norm(self, channels: int) -> nn.Module:
        """Make a norm layer for (B, channels, …)."""
        if self.norm_is_batch:
            return BatchNorm2d(channels)
        return nn.GroupNorm(self.norm_groups, channels)

    def head_norm(self, features: int, *, affine: bool = True) -> nn.Module:
        """Make a norm for (B, features) in a head; `ConfigError` if groups do not divide them."""
        if (self.head_norm_name or self.norm_name) != "group":
            return BatchNorm1d(features, affine=affine)
        if features % self.norm_groups:
            raise ConfigError(
                f"a head of {features} units cannot be divided into {self.norm_groups} groups;"
                " change its width or model.norm_groups"
            )
        return nn.GroupNorm(self.norm_groups, features, affine=affine)


def make_backbone(
    config: ModelConfig, in_channels: int, image_size: tuple[int, int] = (32, 32)
) -> Backbone:
    """Make the backbone of a configuration, for images of 1 or 3 channels and sides of at least 4.

    Raises `UnknownNameError` for another name, `PluginError` if that of another package cannot be
    loaded, `ResourceError` if its library is not installed, and `ConfigError` for settings or
    images that it does not take.
    """
    shape: Shape
    if config.backbone.startswith(LIBRARIES):
        shape = foreign_shape(config, (in_channels, *image_size))
    else:
        shape = _shape(config.backbone)
    width = config.width or shape.width
    if isinstance(shape, TransformerShape):
        if width % shape.heads:
            raise ConfigError(
                f"model.width: must divide among the {shape.heads} heads of {config.backbone}"
                f" (got {width})"
            )
        if not shape.convolutions:
            patch_side(image_size)  # raises if there is none
            if width % 4:
                raise ConfigError(
                    f"model.width: must be divisible by 12 with {config.backbone}: it has 3 heads,"
                    f" and positions a sine and a cosine of two coordinates (got {width})"
                )
    elif isinstance(shape, ForeignShape):
        pass  # its norms are its own
    elif config.norm == "group" and width % config.norm_groups:
        raise ConfigError(
            f"model.norm_groups: must divide the width (got {config.norm_groups} groups for"
            f" {width} channels)"
        )
    if config.init == "cct" and not getattr(shape, "convolutions", 0):
        raise ConfigError(
            f"model.init: cct is for cct backbones (got {config.backbone}); use torch or he-fan-out"
        )
    everything = config.trainable == "all"
    return Backbone(
        shape,
        width,
        config.stem_stride,
        in_channels,
        config.norm,
        config.norm_groups,
        image_size,
        None if config.head_norm == "encoder" else config.head_norm,
        config.init,
        prepare=None if everything else partial(freeze_all_but, trainable=config.trainable),
    )


def with_start(backbone: Backbone, config: ModelConfig) -> Backbone:
    """Return the backbone with the weights that the configuration names, if any; see `start_of`."""
    if config.weights is None:
        return backbone
    with torch.device("meta"):  # its names and shapes are enough
        encoder = backbone.make()
    shape = backbone.shape
    classifier = shape.classifier if isinstance(shape, ForeignShape) else ()
    return replace(backbone, start=start_of(config, encoder, classifier))


@cache
def check_output(backbone: Backbone, name: str) -> None:
    """Refuse an encoder of another package that gives other than a vector of `dim` an image."""
    if not isinstance(backbone.shape, CustomShape):
        return
    with scope(0, "output"), torch.no_grad():
        features = backbone.make()(torch.zeros(2, backbone.in_channels, *backbone.image_size))
    got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if got != [2, backbone.dim]:
        raise PluginError(
            f"backbone {name!r} gives {got} for two images, and its dim says [2, {backbone.dim}]"
        )


@cache
def _shape(name: str) -> Shape:
    if name in BACKBONES:
        return BACKBONES[name]
    points = {point.name: point for point in entry_points(group=PLUGINS)}
    if name not in points:
        if elsewhere := libraries_with(name):
            raise ConfigError(f"unknown backbone {name!r}; write {' or '.join(elsewhere)}")
        known = [*BACKBONES, *points]
        raise UnknownNameError("backbone", name, known, "; also timm:NAME and torchvision:NAME")
    try:
        shape = load(points[name])
    except Exception as err:
        raise load_error(points[name], err) from err
    if not isinstance(shape, CustomShape):
        raise PluginError(f"plugin {origin(points[name])} is no CustomShape")
    return shape


class ResNet(nn.Module):
    """Residual network for small images: 3x3 stem, basic blocks, global average pooling.

    Source: He et al. 2016, https://arxiv.org/abs/1512.03385, with the stem that Orchestra's
    released code and most CIFAR work use in place of 7x7 stride 2 and max-pool.
    """

    def __init__(self, backbone: Backbone, shape: ResNetShape) -> None:
        super().__init__()
        self.stem = _conv(backbone.in_channels, backbone.width, 3, backbone.stem_stride)
        self.stem_norm = backbone.norm(backbone.width)
        blocks: list[nn.Module] = []
        channels = backbone.width
        for stage, count in enumerate(shape.blocks):
            out = backbone.width * 2**stage
            for index in range(count):
                blocks.append(_Block(channels, out, 2 if stage and not index else 1, backbone))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self._channels_last = backbone.width in CHANNELS_LAST

    def forward(self, x: Tensor) -> Tensor:
        """Encode images, (B, C, H, W) -> (B, D), non-negative."""
        if self._channels_last or x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu_(self.stem_norm(self.stem(x)))  # no norm needs its own output to go backwards
        return self.blocks(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, backbone: Backbone) -> None:
        super().__init__()
        self.conv1 = _conv(channels, out, 3, stride)
        self.norm1 = backbone.norm(out)
        self.conv2 = _conv(out, out, 3, 1)
        self.norm2 = backbone.norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(_conv(channels, out, 1, stride), backbone.norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu_(y.add_(self.shortcut(x)))


def _conv(channels: int, out: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)


class CCT(nn.Module):
    """Compact convolutional transformer for images of one size, (B, C, H, W) -> (B, width).

    Every tokenising convolution is 3x3 with ReLU and a 3x3 max-pool of stride 2; positions are
    learnt, one per token.

    Source: Hassani et al. 2021, https://arxiv.org/abs/2104.05704, and its release
    https://github.com/SHI-Labs/Compact-Transformers, whose residual stream is normed between
    attention and the MLP, too. Deviations: no dropout and no stochastic depth, so that a pass is a
    function of its input; the attention pool has no bias, which its softmax would cancel. The last
    convolution has `width` channels, those before it half as many.
    """

    def __init__(self, backbone: Backbone, shape: TransformerShape) -> None:
        super().__init__()
        self.image_size = backbone.image_size
        layers: list[nn.Module] = []
        width, channels, (rows, columns) = backbone.width, backbone.in_channels, self.image_size
        for index in range(shape.convolutions):
            out = width if index == shape.convolutions - 1 else width // 2
            stride = 1 if index else backbone.stem_stride
            layers += [
                nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
                nn.ReLU(),
                _MaxPool(3, stride=2, padding=1),
            ]
            channels = out
            for _ in range(1 + (stride == 2)):
                rows, columns = (rows + 1) // 2, (columns + 1) // 2
        self.tokens = nn.Sequential(*layers)
        self.positions = nn.Parameter(torch.empty(rows * columns, width))
        self.layers = nn.Sequential(*(_Layer(width, shape.heads) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, 1, bias=False)
        nn.init.trunc_normal_(self.positions, std=0.2)  # torch has no default for them

    def forward(self, x: Tensor) -> Tensor:
        """Encode images, (B, C, H, W) -> (B, width); `DataError` for those of another size."""
        _check_size(x, self.image_size)
        tokens = self.tokens(x).flatten(2).transpose(1, 2)  # (B, T, width)
        tokens = self.norm(self.layers(tokens + self.positions))
        weights = self.pool(tokens).softmax(dim=1)  # (B, T, 1)
        pooled: Tensor = (weights * tokens).sum(dim=1)
        return pooled


def _check_size(x: Tensor, expected: tuple[int, int]) -> None:
    if x.shape[2:] != expected:
        made, got = ("x".join(map(str, size)) for size in (expected, x.shape[2:]))
        raise DataError(f"this encoder has positions for {made} images, got {got}")


class _MaxPool(nn.MaxPool2d):
    """Max-pooling over 3x3 windows with stride 2; its gradient has the same bits each time.

    On a GPU torch adds the gradients of overlapping windows in any order.
    """

    def forward(self, x: Tensor) -> Tensor:
        return maxima(x) if x.is_cuda else super().forward(x)


def maxima(x: Tensor) -> Tensor:
    """Return `F.max_pool2d(x, 3, stride=2, padding=1)`, (B, C, H, W) -> (B, C, H / 2, W / 2)."""
    windows = F.pad(x, (1, 1, 1, 1), value=-math.inf).unfold(2, 3, 2).unfold(3, 3, 2)
    return windows.flatten(4).max(dim=4).values  # of equal values the first, as torch does


def attend(queries_keys_values: Tensor, num_heads: int) -> Tensor:
    """Mix tokens by attention, (B, T, 3 * width) -> (B, T, width)."""
    heads = queries_keys_values.unflatten(2, (3, num_heads, -1))
    queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
    mixed = F.scaled_dot_product_attention(queries, keys, values)
    return mixed.transpose(1, 2).flatten(2)


class ViT(nn.Module):
    """Vision transformer for images of one size, (B, C, H, W) -> (B, width): mean of its tokens.

    Positions are fixed sines and cosines; layers are normed before attention and before the MLP,
    whose hidden layer is four tokens wide.

    Source: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, with the positions and, in
    `visible`, the encoder of He et al. 2022, https://arxiv.org/abs/2111.06377. Deviations: the mean
    of tokens in place of a class token, and patches of an eighth of the side.
    """

    positions: Tensor

    def __init__(self, backbone: Backbone, shape: TransformerShape) -> None:
        super().__init__()
        self.image_size = backbone.image_size
        self.side = patch_side(backbone.image_size)
        rows, columns = (length // self.side for length in backbone.image_size)
        self.embed = nn.Linear(backbone.in_channels * self.side**2, backbone.width)
        self.register_buffer("positions", sine_positions(rows, columns, backbone.width), False)
        self.layers = nn.Sequential(
            *(ViTLayer(backbone.width, shape.heads) for _ in range(shape.layers))
        )
        self.norm = nn.LayerNorm(backbone.width)

    def forward(self, x: Tensor) -> Tensor:
        """Encode whole images, (B, C, H, W) -> (B, width); `DataError` for another size."""
        _check_size(x, self.image_size)
        tokens = self.embed(patches(x, self.side)) + self.positions
        pooled: Tensor = self.norm(self.layers(tokens)).mean(dim=1)
        return pooled

    def visible(self, shown: Tensor, places: Tensor) -> Tensor:
        """Encode some patches, (B, V, P), of each image as if there were no others.

        `places` are their numbers, (B, V). Returns tokens after the last norm, (B, V, width).
        """
        tokens = self.embed(shown) + self.positions[places]
        normed: Tensor = self.norm(self.layers(tokens))
        return normed


class ViTLayer(nn.Module):
    """Attention and an MLP, each added to normed tokens, (B, T, width) -> (B, T, width).

    It has 12 width² + 13 width parameters.
    """

    def __init__(self, width: int, num_heads: int, ratio: int = 4, *, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=bias)
        self.mixed = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, ratio * width)
        self.out = nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then change each."""
        qkv = self.queries_keys_values(self.attention_norm(x))
        x = x + self.mixed(attend(qkv, self.num_heads))
        y: Tensor = self.out(F.gelu(self.hidden(self.norm(x))))
        return x + y


class _Layer(ViTLayer):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__(width, num_heads, ratio=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.queries_keys_values(self.attention_norm(x))
        x = self.norm(x + self.mixed(attend(qkv, self.num_heads)))
        y: Tensor = self.out(F.gelu(self.hidden(x)))
        return x + y


def patch_side(image_size: tuple[int, int]) -> int:
    """Return the side of square patches: nearest to an eighth of the image's, at least 2.

    4 for 32x32 images (64 patches), 8 for 64x64, 2 for 8x8, 4 for 28x28 (49 patches). Raises
    `ConfigError` if no square of at least 2x2 divides the image.
    """
    common = math.gcd(*image_size)
    sides = [side for side in range(2, common + 1) if common % side == 0]
    if not sides:
        raise ConfigError(
            "model.backbone: images of {}x{} cannot be cut into square patches; set another"
            " backbone".format(*image_size)
        )
    return min(sides, key=lambda side: abs(side - min(image_size) / 8))


def patches(x: Tensor, side: int) -> Tensor:
    """Cut images into square patches, row by row, (B, C, H, W) -> (B, T, C * side * side)."""
    squares = x.unfold(2, side, side).unfold(3, side, side)  # (B, C, rows, columns, side, side)
    return squares.permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)


def sine_positions(rows: int, columns: int, width: int) -> Tensor:
    """Sines and cosines of both coordinates at wavelengths from 2 pi to 20,000 pi.

    Returns (rows * columns, width), row by row; the width is divisible by 4.
    """
    rates = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))  # (width / 4,)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (T, 2)
    angles = places[:, :, None] * rates  # (T, 2, width / 4)
    return torch.cat([angles.sin(), angles.cos()], dim=2).flatten(1)

"""Heads on top of an encoder."""

from collections.abc import Callable

from torch import nn

from fedbench.bench.nn.backbones import Backbone


def mlp(
    in_dim: int,
    hidden_dim: int,
    out_dim: int,
    *,
    norm: Callable[[int], nn.Module] | None = None,
    out_norm: nn.Module | None = None,
    out_bias: bool = True,
) -> nn.Sequential:
    """Make a head of linear layer, ReLU, linear layer: (B, in_dim) -> (B, out_dim).

    `norm` makes the norm between the first layer and ReLU; that layer then has no bias, which
    batch norm would cancel. `out_norm` is applied to the output.
    """
    layers: list[nn.Module] = [nn.Linear(in_dim, hidden_dim, bias=norm is None)]
    if norm is not None:
        layers.append(norm(hidden_dim))
    layers += [nn.ReLU(), nn.Linear(hidden_dim, out_dim, bias=out_bias)]
    if out_norm is not None:
        layers.append(out_norm)
    return nn.Sequential(*layers)


def projector(
    backbone: Backbone, hidden_dim: int, out_dim: int, *, normed: bool, out_bias: bool = True
) -> nn.Sequential:
    """Make a head on the encoder, (B, D) -> (B, out_dim), with norms after both layers if `normed`.

    The second norm has no affine; without norms the last layer always has a bias.
    """
    if not normed:
        return mlp(backbone.dim, hidden_dim, out_dim)
    out_norm = backbone.head_norm(out_dim, affine=False)
    norm = backbone.head_norm
    return mlp(backbone.dim, hidden_dim, out_dim, norm=norm, out_norm=out_norm, out_bias=out_bias)

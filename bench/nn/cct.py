"""A compact convolutional transformer: convolutions make the tokens, attention pools them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.errors import DataError


class CCT(nn.Module):
    """Compact convolutional transformer for images of one size, (B, C, H, W) -> (B, width).

    Every tokenising convolution is 3x3 with ReLU and a 3x3 max-pool of stride 2.

    Source: Hassani et al. 2021, https://arxiv.org/abs/2104.05704, and its release
    https://github.com/SHI-Labs/Compact-Transformers, whose residual stream is normed between
    attention and the MLP, too. Deviations: no dropout and no stochastic depth, so that a pass is a
    function of its input; the attention pool has no bias, which its softmax would cancel.

    Args:
        in_channels: C.
        image_size: (H, W), each at least 4; positions are learnt, one per token.
        width: of a token; the first convolution has half as many channels.
        num_layers: transformer layers.
        num_heads: attention heads, dividing the width.
        num_convolutions: in the tokeniser; each halves height and width.
        stem_stride: stride of the first convolution.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        *,
        width: int,
        num_layers: int,
        num_heads: int,
        num_convolutions: int,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        self.image_size = image_size
        layers: list[nn.Module] = []
        channels, (height, wide) = in_channels, image_size
        for index in range(num_convolutions):
            out = width if index == num_convolutions - 1 else width // 2
            stride = 1 if index else stem_stride
            layers += [
                nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            ]
            channels = out
            for _ in range(1 + (stride == 2)):
                height, wide = (height + 1) // 2, (wide + 1) // 2
        self.tokens = nn.Sequential(*layers)
        self.positions = nn.Parameter(torch.empty(height * wide, width))
        self.layers = nn.Sequential(*(_Layer(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, 1, bias=False)
        nn.init.trunc_normal_(self.positions, std=0.2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width).

        Raises:
            DataError: for images of another size than that of the positions.
        """
        if x.shape[2:] != self.image_size:
            want, got = ("x".join(map(str, size)) for size in (self.image_size, x.shape[2:]))
            raise DataError(f"this encoder has learnt positions for {want} images, got {got}")
        tokens = self.tokens(x).flatten(2).transpose(1, 2)  # (B, T, width)
        tokens = self.norm(self.layers(tokens + self.positions))
        weights = self.pool(tokens).softmax(dim=1)  # (B, T, 1)
        pooled: Tensor = (weights * tokens).sum(dim=1)
        return pooled


class _Layer(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self._attend(self.attention_norm(x)))
        wide: Tensor = self.out(F.gelu(self.hidden(x)))
        return x + wide

    def _attend(self, x: Tensor) -> Tensor:
        heads = self.queries_keys_values(x).unflatten(2, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        read = F.scaled_dot_product_attention(queries, keys, values)
        mixed: Tensor = self.mixed(read.transpose(1, 2).flatten(2))
        return mixed

"""The vision transformer (Dosovitskiy et al. 2021, arXiv 2010.11929). Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Leaves a sample's branch out with probability ``rate`` while training, and makes up for it in the others
    (stochastic depth, Huang et al. 2016, arXiv 1603.09382).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return branch
        kept = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.rate
        return branch * kept / (1.0 - self.rate)


class Block(nn.Module):
    """Attention, then two linear layers with GELU between them, each normalised before and added to its input."""

    def __init__(
        self, dim: int, *, heads: int, mlp_ratio: float, qkv_bias: bool, drop_path: float, dropout: float
    ) -> None:
        super().__init__()
        hidden = round(dim * mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        if not qkv_bias:
            # Its own bias=False would take that of the output, too.
            self.attention.register_parameter("in_proj_bias", None)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, dim),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        attended = self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.drop_path(self.dropout(attended))
        result: Tensor = tokens + self.drop_path(self.mlp(self.norm2(tokens)))
        return result


class ViT(nn.Module):
    """Images (N, channels, side, side) to logits (N, classes), by a class token and one token for each ``patch`` ×
    ``patch`` pixels, of ``dim`` numbers each.

    Defaults make ViT-B/16: 86 567 656 parameters. ``drop_path`` is the last block's rate; it falls to 0 at the
    first. ``dropout`` is that after embedding, attention and linear layers. ValueError if sides or heads do not
    divide.
    """

    def __init__(
        self,
        *,
        side: int = 224,
        patch: int = 16,
        channels: int = 3,
        classes: int = 1000,
        dim: int = 768,
        depth: int = 12,
        heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_path: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if side % patch:
            raise ValueError(
                f"patch = {patch}: images of {side}×{side} pixels must divide into patches. Correct it."
            )
        if dim % heads:
            raise ValueError(f"heads = {heads}: must divide dim = {dim}. Correct one.")
        self.patches = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(
                Block(
                    dim,
                    heads=heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    drop_path=drop_path * index / max(1, depth - 1),
                    dropout=dropout,
                )
                for index in range(depth)
            )
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        self._initialise()

    def _initialise(self) -> None:
        """As timm: matrices, positions and class token from a normal distribution; biases 0."""
        nn.init.normal_(self.class_token, std=1e-6)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.MultiheadAttention):
                nn.init.trunc_normal_(module.in_proj_weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = self.blocks(self.dropout(tokens + self.positions))
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits

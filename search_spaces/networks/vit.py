"""Vision transformer (Dosovitskiy et al. 2021, arXiv 2010.11929). Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382): in training, drops the branch of a sample with
    probability ``rate``, and scales the branches of the others so that the expectation stays.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return branch
        kept = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.rate
        # Divided by the probability of a branch to stay, so that the expectation is the undropped branch.
        return branch * kept / (1.0 - self.rate)


class Block(nn.Module):
    """Block of attention and two linear layers with GELU, each with a normalisation before it and a shortcut."""

    def __init__(
        self, dim: int, *, heads: int, mlp_ratio: float, qkv_bias: bool, drop_path: float, dropout: float
    ) -> None:
        super().__init__()
        hidden = round(dim * mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        if not qkv_bias:
            # The argument bias=False of MultiheadAttention would remove the bias of its output as well.
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
        # Only without weights torch uses its fused attention.
        attended = self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.drop_path(self.dropout(attended))
        result: Tensor = tokens + self.drop_path(self.mlp(self.norm2(tokens)))
        return result


class ViT(nn.Module):
    """Vision transformer from images (N, channels, side, side) to logits (N, classes).

    The defaults make ViT-B/16, with 86 567 656 parameters.

    Args:
        side (int): height and width of the images.
        patch (int): side of a patch, each of which is a token.
        channels (int): channels of the images.
        classes (int): number of classes.
        dim (int): length of a token.
        depth (int): number of blocks.
        heads (int): heads of each attention.
        mlp_ratio (float): ratio of hidden units of a block's linear layers to ``dim``.
        qkv_bias (bool): whether queries, keys and values have biases.
        drop_path (float): rate of stochastic depth in the last block; it falls linearly to 0 in the first.
        dropout (float): probability of dropout after the embedding, attention and linear layers.

    Raises:
        ValueError: ``patch`` does not divide ``side``, or ``heads`` does not divide ``dim``.
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
        """Draw matrices, positions and class token from normal distributions and set biases to 0, as timm does."""
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

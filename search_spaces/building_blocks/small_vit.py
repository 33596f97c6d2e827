"""The vision transformer of the campaigns on images in the form of CIFAR: its options and the network itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search_spaces import options as check
from search_spaces.building_blocks.image_task import ImageOptions
from search_spaces.options import CosineForm, Count, NotNegative

if TYPE_CHECKING:
    from search_spaces.networks.vit import ViT


class ViTOptions(ImageOptions):
    """The defaults are a small network."""

    cosine: CosineForm = "after-warm-up"
    """Where the cosine begins: after-warm-up, or timm: at the run's start, as the source's."""
    dim: Count = 48
    depth: Count = 2
    heads: Count = 6
    weight_decay: NotNegative = 0.01
    """Of all weights, decoupled from the gradient (AdamW)."""

    def rules(self) -> None:
        super().rules()
        check.divisor("dim", self.dim, heads=self.heads)

    def vit(self, *, classes: int, **others: Any) -> ViT:
        """A ViT of patches of 8 × 8 pixels; ``others``: as of ``ViT``."""
        from search_spaces.networks.vit import ViT

        return ViT(
            side=32,
            patch=8,
            classes=classes,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            **others,
        )

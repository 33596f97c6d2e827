"""Region mutual information loss (Zhao et al. 2019, arXiv 1910.12037) for semantic segmentation, and the loss of a
hierarchical multi-scale attention network that is made of it. Importing this module imports torch.

Targets are classes (N, H, W) from 0; pixels of any other value, such as Cityscapes' 255, are ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.networks.hrnet_ocr import Predictions

# Settings of the paper's section 4 and of its authors' code.
_RADIUS, _POOLED, _CROSS_ENTROPY_WEIGHT, _LEAST_PROBABILITY, _DIAGONAL = 3, 4, 0.5, 1e-6, 5e-4

# Weights of Tao et al. 2020: of the auxiliary head, and of each scale alone.
_AUXILIARY_WEIGHT, _SCALE_WEIGHT = 0.4, 0.05


def segmentation_loss(outputs: Tensor | Predictions, targets: Tensor) -> Tensor:
    """Loss of a ``MultiScaleOCR``: region mutual information of the joint prediction and, in training, binary cross
    entropy of the auxiliary head and of both scales.
    """
    if isinstance(outputs, Tensor):
        return region_mutual_information(outputs, targets)
    scales = binary_cross_entropy(outputs.low, targets) + binary_cross_entropy(outputs.full, targets)
    auxiliary = binary_cross_entropy(outputs.auxiliary, targets)
    main = region_mutual_information(outputs.joint, targets)
    return main + _AUXILIARY_WEIGHT * auxiliary + _SCALE_WEIGHT * scales


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy of logits (N, C, H, W), summed over classes; the mean over the pixels that count."""
    present, counted = _one_hot(targets, logits.shape[1])
    each = functional.binary_cross_entropy_with_logits(
        logits.float(), present, weight=counted, reduction="sum"
    )
    # One pixel more, so that a batch of ignored pixels alone has a loss of 0.
    return each / (counted.sum() + 1.0)


def region_mutual_information(logits: Tensor, targets: Tensor) -> Tensor:
    """Half the binary cross entropy, and half the negative lower bound of the mutual information of target and
    prediction, as vectors of 3 × 3 pixels, each the mean of 4 × 4 (section 3 of the paper).

    NaN where the prediction is not finite.
    """
    present, counted = _one_hot(targets, logits.shape[1])
    probabilities = logits.float().sigmoid() * counted + _LEAST_PROBABILITY
    # Small differences of large covariances decide, hence double precision.
    labels, predicted = _vectors(present), _vectors(probabilities)
    small = _DIAGONAL * torch.eye(_RADIUS**2, dtype=torch.float64, device=logits.device)
    covariance = predicted @ predicted.mT + small
    crossed = labels @ predicted.mT
    # The posterior covariance of the labels, M = Σ_Y - Cov(Y, P) Σ_P⁻¹ Cov(Y, P)ᵀ.
    factor, _ = torch.linalg.cholesky_ex(covariance)
    posterior = labels @ labels.mT - crossed @ torch.cholesky_solve(crossed.mT, factor)
    # log det M = 2 Σ log diag L; cholesky_ex raises no error for values that are not finite, so that the run ends as
    # diverged.
    factor, failed = torch.linalg.cholesky_ex(posterior + small)
    log_determinant = 2 * (factor.diagonal(dim1=-2, dim2=-1) + 1e-8).log().sum(-1)
    bound = torch.where(failed > 0, torch.nan, 0.5 * log_determinant) / _RADIUS**2
    information = bound.mean(0).sum().float()
    cross_entropy = binary_cross_entropy(logits, targets)
    return _CROSS_ENTROPY_WEIGHT * cross_entropy + (1 - _CROSS_ENTROPY_WEIGHT) * information


def _one_hot(targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Targets as (N, classes, H, W), 0 where ignored, and which pixels count (N, 1, H, W), in single precision."""
    counted = (targets >= 0) & (targets < classes)
    indices = torch.where(counted, targets, 0).long()
    present = functional.one_hot(indices, classes).permute(0, 3, 1, 2) * counted[:, None]
    return present.float(), counted[:, None].float()


def _vectors(maps: Tensor) -> Tensor:
    """Vectors of 3 × 3 neighbours (N, C, 9, positions) of the pooled maps (N, C, H, W), less their means."""
    pooled = functional.avg_pool2d(maps, _POOLED, stride=_POOLED, padding=_POOLED // 2).double()
    height, width = (side - _RADIUS + 1 for side in pooled.shape[2:])
    vectors = torch.stack(
        [
            pooled[:, :, row : row + height, column : column + width].flatten(2)
            for row in range(_RADIUS)
            for column in range(_RADIUS)
        ],
        dim=2,
    )
    return vectors - vectors.mean(dim=3, keepdim=True)

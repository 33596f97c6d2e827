"""What Keras does unlike torch, for networks whose source was trained with it."""

from __future__ import annotations

from torch import nn


def as_in_keras(network: nn.Module, *, epsilon: float, initialised: bool) -> None:
    """Has batch normalisation add ``epsilon``, 1e-3 in Keras, to the variance; and, ``initialised``, draws weights from
    Glorot's uniform distribution and begins with biases of 0.

    With torch's 1e-5 a network with softmax begins as another: what softmax over many channels gives varies by less
    than that, which 1e-5 scales up to deviations of 1, and 1e-3 leaves near 0.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = epsilon
        elif initialised and isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

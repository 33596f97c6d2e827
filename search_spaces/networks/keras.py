"""Defaults of Keras that differ from torch's, for networks from publications that used Keras."""

from __future__ import annotations

from torch import nn


def as_in_keras(network: nn.Module, *, epsilon: float, initialised: bool) -> None:
    """Set the summand of batch normalisation, and initial weights and biases, as in Keras.

    Args:
        network (Module): network to change.
        epsilon (float): summand of the variance in batch normalisation, 1e-3 in Keras.
        initialised (bool): whether to draw weights from Glorot's uniform distribution and set biases to 0.
    """
    # The outputs of a softmax over many channels have a variance below torch's summand of 1e-5, which scales them to
    # deviations near 1; Keras' 1e-3 leaves them near 0, so that the network begins as another function.
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = epsilon
        elif initialised and isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

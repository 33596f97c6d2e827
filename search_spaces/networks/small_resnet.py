"""Models that the search spaces share. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}

ORDERS = (
    "original",
    "norm-after-addition",
    "activation-before-addition",
    "activation-only-pre-activation",
    "full-pre-activation",
)
"""Where a block normalises and activates: figure 4 (a) to (e) of He et al. 2016 (arXiv 1603.05027)."""

_PRE = ("activation-only-pre-activation", "full-pre-activation")


def _conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    # Without a bias: the normalisation that follows has one.
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """A residual block of two 3×3 convolutions.

    ``before`` is what a pre-activation block does before its first convolution. It is part of the branch, and
    of the shortcut too where that is a projection, as in the authors' code; an identity shortcut is left
    alone.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, activation: str, order: str) -> None:
        super().__init__()
        act, norm, conv = ACTIVATIONS[activation], nn.BatchNorm2d, _conv
        first, second = conv(inputs, outputs, stride=stride), conv(outputs, outputs)
        before: list[nn.Module] = []
        after: list[nn.Module] = []
        if order == "original":
            branch = [first, norm(outputs), act(), second, norm(outputs)]
            after = [act()]
        elif order == "norm-after-addition":
            branch = [first, norm(outputs), act(), second]
            after = [norm(outputs), act()]
        elif order == "activation-before-addition":
            branch = [first, norm(outputs), act(), second, norm(outputs), act()]
        elif order == "activation-only-pre-activation":
            before = [act()]
            branch = [first, norm(outputs), act(), second, norm(outputs)]
        elif order == "full-pre-activation":
            before = [norm(inputs), act()]
            branch = [first, norm(outputs), act(), second]
        else:
            raise ValueError(f"order = {order!r}: must be one of {', '.join(ORDERS)}. Correct it.")
        self.before = nn.Sequential(*before)
        self.branch = nn.Sequential(*branch)
        self.after = nn.Sequential(*after)
        changes_shape = stride != 1 or inputs != outputs
        self.projection = conv(inputs, outputs, kernel=1, stride=stride) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        ready: Tensor = self.before(x)
        shortcut = x if self.projection is None else self.projection(ready)
        result: Tensor = self.after(shortcut + self.branch(ready))
        return result


class ResNet(nn.Module):
    """A small residual network for small images: (N, channels, height, width) to (N, classes).

    A stem of ``width`` filters, one stage of ``blocks`` blocks each with 1, 2, 4, … times as many filters,
    each stage but the first halving height and width, then the mean over what is left of the image.
    """

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        width: int,
        activation: str,
        order: str,
        stages: int = 2,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        act = ACTIVATIONS[activation]
        stem: list[nn.Module] = [_conv(channels, width)]
        if order not in _PRE:
            stem += [nn.BatchNorm2d(width), act()]
        body: list[nn.Module] = []
        filters = width
        for stage in range(stages):
            for index in range(blocks):
                outputs = width * 2**stage
                stride = 2 if stage > 0 and index == 0 else 1
                body.append(Block(filters, outputs, stride=stride, activation=activation, order=order))
                filters = outputs
        # The last addition of a pre-activation network has nothing after it yet.
        end: list[nn.Module] = [nn.BatchNorm2d(filters)] if order == "full-pre-activation" else []
        if order in _PRE:
            end.append(act())
        self.features = nn.Sequential(*stem, *body, *end)
        self.classifier = nn.Linear(filters, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits

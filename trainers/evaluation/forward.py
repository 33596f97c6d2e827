"""Forward pass of a batch through the model, with the user's loss or the user's own step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from trainers.evaluation.metrics import one_number
from trainers.optim.label_smoothing import smoothed

Loss = Callable[..., Tensor]
"""Function from (outputs, targets) to a tensor without dimensions, the mean over the samples."""
Step = Callable[[nn.Module, tuple[object, object]], Mapping[str, object]]
"""Function from (model, (inputs, targets)) to {"loss": a tensor without dimensions, "outputs": …}."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Computation of a batch's loss and outputs, by a loss or by a step of the user."""

    loss: Loss | None = None
    step: Step | None = None
    label_smoothing: float = 0.0
    """Probability that is spread evenly over all classes of the targets, with a loss."""

    def training_loss(self, model: nn.Module, inputs: object, targets: object) -> Tensor:
        """Mean loss of the batch, with gradients; TypeError for any other value of the user's function."""
        if self.step is not None:
            return _one_number(self._stepped(model, inputs, targets)["loss"], "step", trained=True)
        outputs = outputs_of(model, inputs)
        if self.label_smoothing:
            if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
                kinds = _kinds(outputs, targets)
                raise TypeError(
                    f"label_smoothing needs tensors, and got {kinds}. Set it to 0, and smooth in the loss."
                )
            targets = smoothed(targets, outputs, self.label_smoothing)
        return _one_number(self._loss_of(outputs, targets), "loss", trained=True)

    def validation_loss(self, outputs: object, targets: object) -> float | Tensor:
        """Mean loss of a batch, without label smoothing; TypeError unless the user's function returns one number."""
        value = self._loss_of(outputs, targets)
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            return value.detach().reshape(())
        return one_number("validation_loss", value)

    def _loss_of(self, outputs: object, targets: object) -> object:
        assert self.loss is not None
        try:
            return self.loss(outputs, targets)
        except (TypeError, AttributeError) as error:
            # A loss that gets a structure in place of a tensor raises such an error, which does not name the cause.
            if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
                raise
            raise TypeError(
                f"loss: {error}. It got {_kinds(outputs, targets)}. Have it take their parts, such as "
                "lambda outputs, targets: cross_entropy(outputs[0], targets)."
            ) from error

    def evaluated(
        self, model: nn.Module, inputs: object, targets: object, *, outputs: bool
    ) -> tuple[Tensor | None, object]:
        """Loss of the user's step, None without a step, and outputs; TypeError if needed ``outputs`` are missing."""
        if self.step is None:
            return None, outputs_of(model, inputs)
        found = self._stepped(model, inputs, targets)
        if outputs and "outputs" not in found:
            raise TypeError(
                'step: returned no outputs, which loss and metrics need. Return {"loss": …, "outputs": …}.'
            )
        return _one_number(found["loss"], "step", trained=False), found.get("outputs")

    def _stepped(self, model: nn.Module, inputs: object, targets: object) -> Mapping[str, object]:
        assert self.step is not None
        found = self.step(model, (inputs, targets))
        if not isinstance(found, Mapping) or "loss" not in found:
            what = f"a dictionary of {list(found)}" if isinstance(found, Mapping) else type(found).__name__
            raise TypeError(
                f'step: returned {what}, and must return {{"loss": a tensor, "outputs": what the metrics get}}. '
                "Correct it."
            )
        return found


def outputs_of(model: nn.Module, inputs: object) -> object:
    """Output of the model, whose arguments are the items of a list, tuple or dictionary of inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def _kinds(outputs: object, targets: object) -> str:
    return f"a {type(outputs).__name__} of outputs and a {type(targets).__name__} of targets"


def _one_number(value: object, whose: str, *, trained: bool) -> Tensor:
    """``value``, returned by ``loss`` or ``step``; TypeError unless it is one number, in training with a gradient."""
    if not isinstance(value, Tensor):
        found = type(value).__name__
    elif value.dim():
        found = f"a tensor of shape {tuple(value.shape)}"
    elif trained and not value.requires_grad:
        found = "a tensor that depends on no trained parameter, so that there is no gradient"
    else:
        return value
    what = "and must return a tensor" if whose == "loss" else 'as "loss", and must return a tensor'
    raise TypeError(
        f"{whose}: returned {found}, {what} without dimensions, the mean over its samples, from the "
        "model's outputs. Correct it, such as by cross_entropy(outputs, targets, reduction='mean')."
    )

"""Settings of products while a training with TF32 runs, and that they are afterwards as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from skips import not_possible_here
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import trainers
from trainers.precision import BY_BACKEND, full_precision, matrix_products

GPU = torch.device("cuda")  # settings can be made without one


def by_backend() -> list[str]:
    if not BY_BACKEND:
        return []
    return [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]


def settings() -> tuple[str, list[str]]:
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "not readable after the newer"
    return older, by_backend()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul] if BY_BACKEND else []
    yield
    if BY_BACKEND:
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for backend in backends:
        backend.fp32_precision = "none"


@pytest.mark.parametrize("before", [None, "highest", "high", "medium"])
def test_tf32_is_allowed_by_the_setting_that_compilers_read(before: str | None) -> None:
    if before is not None:
        torch.set_float32_matmul_precision(before)
    found = settings()
    with pytest.raises(ZeroDivisionError), matrix_products(GPU, "tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        assert by_backend()[:1] in ([], ["tf32"])
        inside = settings()
        with full_precision():
            assert set(by_backend()) <= {"ieee"}
            assert BY_BACKEND or torch.get_float32_matmul_precision() == "highest"
        assert settings() == inside
        _ = 1 / 0
    assert settings() == found


@pytest.mark.parametrize("of", ["the GPU", "all"])
def test_tf32_is_allowed_where_the_user_has_made_the_newer_setting(of: str) -> None:
    if not BY_BACKEND:
        not_possible_here("before torch 2.9 there is one setting")
    setting: Any = torch.backends if of == "all" else torch.backends.cuda.matmul
    setting.fp32_precision = "tf32"
    found = settings()
    with matrix_products(GPU, "tf32"):
        assert by_backend()[0] == "tf32"
        with full_precision():
            assert by_backend() == ["ieee", "ieee"]
    assert settings() == found
    if of == "all":
        torch.backends.fp32_precision = "ieee"
        assert by_backend() == ["ieee", "ieee"], "backends follow it, as before"


@pytest.mark.parametrize(("device", "precision"), [(GPU, "fp32"), (GPU, "bf16"), ("cpu", "tf32")])
def test_other_precisions_and_the_cpu_leave_the_settings_alone(device: Any, precision: str) -> None:
    found = settings()
    with matrix_products(torch.device(device), precision):
        assert settings() == found


class CastWeights(TorchDispatchMode):
    """Counts casts of tensors of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default and tuple(args[0].shape) == self.shape
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inside", [False, True])
def test_an_evaluation_casts_each_weight_once_and_computes_metrics_as_the_caller_does(inside: bool) -> None:
    model = nn.Linear(7, 5)
    data = TensorDataset(torch.randn(24, 7), torch.randn(24, 5))

    def error(outputs: Tensor, targets: Tensor) -> float:
        assert torch.is_autocast_enabled("cpu") == inside
        return float((outputs.float() - targets).square().mean())

    with torch.autocast("cpu") if inside else nullcontext(), CastWeights((5, 7)) as casts:
        found = trainers.evaluate(model, data, metrics={"error": error}, batch_size=6, precision="bf16")
    assert casts.count == 1
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = torch.cat([model(part) for part in data.tensors[0].split(6)])
    assert found["error"] == float((outputs.float() - data.tensors[1]).square().mean())
    if not inside:  # in which torch itself keeps casts
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        found = trainers.evaluate(model, data, metrics={"error": error}, batch_size=6, precision="bf16")
        assert found["error"] == pytest.approx(float(data.tensors[1].square().mean()))

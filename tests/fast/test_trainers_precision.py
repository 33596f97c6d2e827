"""Settings of products while a training with TF32 runs, and that they are afterwards as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from skips import not_possible_here

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

"""What evaluations ask of CUDA, with a torch that says what each test needs it to say."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hpo import cuda
from hpo.cuda import NoDevice, OwnDevice


class FakeTorch:
    """A torch built for ``built`` that finds so many devices."""

    def __init__(self, count: int, built: str | None = "12.8", name: str = "NVIDIA H200") -> None:
        self.version = SimpleNamespace(cuda=built)
        self.cuda = self
        self.count = count
        self.properties = SimpleNamespace(name=name, uuid="8932f937")

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def init(self) -> None:
        if not self.count:
            raise RuntimeError(
                "The NVIDIA driver on your system is too old (found version 11040).\nSee there"
            )

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return self.properties


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    return lambda torch: monkeypatch.setitem(sys.modules, "torch", torch)


def test_a_device_that_works_is_used(install) -> None:
    install(FakeTorch(2))
    device = OwnDevice("cuda:1")
    assert (device.name, device.index, device.take_fault()) == ("cuda:1", 1, None)


def test_without_a_device_nobody_asks_torch(install) -> None:
    install(None)
    assert OwnDevice("cpu").name == OwnDevice().name == "cpu"


def test_where_there_is_no_torch_the_task_brings_something_else(install) -> None:
    install(None)
    assert OwnDevice("cuda:1").name == "cuda:1"


def test_torch_without_cuda_uses_the_cpu(install) -> None:
    install(FakeTorch(0, built=None))
    device = OwnDevice("cuda:0")
    assert (device.name, device.take_fault()) == ("cpu", None)


def test_a_device_that_does_not_work_is_an_error_and_not_the_cpu(install) -> None:
    install(FakeTorch(0))
    device = OwnDevice("cuda:1", label="worker rank 1 on node7", visible="0,1")
    with pytest.raises(NoDevice) as caught:
        _ = device.name
    text = str(caught.value)
    assert device.take_fault() == text and device.take_fault() is None
    assert "worker rank 1 on node7 cannot use its GPU, cuda:1 (CUDA_VISIBLE_DEVICES is '0,1')" in text
    assert "too old (found version 11040). torch is built for CUDA 12.8" in text and "nvidia-smi" in text
    install(FakeTorch(2))
    assert (device.name, device.take_fault()) == ("cuda:1", None), "it was asked for again"


def test_one_device_of_several_that_is_gone_is_an_error(install) -> None:
    """CUDA counts those before the first that it cannot find."""
    install(FakeTorch(1))
    assert OwnDevice("cuda:0").name == "cuda:0"
    with pytest.raises(NoDevice, match=r"is not set\): torch finds 1 devices"):
        _ = OwnDevice("cuda:1").name


def test_mig_instances_have_no_identity_for_nccl(install) -> None:
    install(FakeTorch(1))
    assert cuda.identity(0) == "8932f937"
    install(FakeTorch(1, name="NVIDIA A100-SXM4-40GB MIG 3g.20gb"))
    assert cuda.identity(0) is None

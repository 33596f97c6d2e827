"""Questions of evaluations to their GPU, with a torch that answers as each test needs."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from programs import called
from refusals import refused
from stand_in_torch import torch_that_finds
from terminal import Terminal

from hpo.evaluation import gpu
from hpo.evaluation.devices import AMD, INTEL, NVIDIA
from hpo.evaluation.gpu import NoDevice, OwnDevice

NODE7 = "the evaluator on node7"


class FakeTorch:
    """A torch built for ``built`` that finds so many devices."""

    def __init__(
        self, count: int, built: str | None = "12.8", name: str = "NVIDIA H200", kind: str = "cuda"
    ) -> None:
        self.version = SimpleNamespace(**{kind: built})
        self.cuda = self.xpu = self
        self.count = count
        self.properties = SimpleNamespace(name=name, uuid="8932f937")
        self.synchronize: Callable[[int], None] = lambda device: None
        self.calls: list[str] = []
        self.accelerator = SimpleNamespace(empty_host_cache=lambda: self.calls.append("empty_host_cache"))
        self._C = SimpleNamespace()

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def init(self) -> None:
        if not self.count:
            raise RuntimeError(
                "The NVIDIA driver on your system is too old (found version 11040).\nSee there"
            )

    def is_initialized(self) -> bool:
        return self.count > 0

    def current_device(self) -> int:
        return self.count - 1

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return self.properties


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def become(torch: FakeTorch | None) -> FakeTorch | None:
        for name in ("torch", "torch.cuda"):
            monkeypatch.setitem(sys.modules, name, torch)
        monkeypatch.setitem(sys.modules, "torch.xpu", None)
        monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)
        return torch

    return become


def test_torch_has_what_the_stand_in_stands_for() -> None:
    import torch

    for own in (torch.cuda, torch.xpu, FakeTorch(1)):
        for name in (
            "is_available",
            "device_count",
            "init",
            "is_initialized",
            "current_device",
            "empty_cache",
        ):
            inspect.signature(getattr(own, name)).bind()
        for name in ("synchronize", "get_device_properties"):
            inspect.signature(getattr(own, name)).bind(0)
    for name in ("is_available", "device_count", "is_initialized"):
        assert type(getattr(torch.cuda, name)()) is type(getattr(FakeTorch(1), name)()), name
    if torch.version.cuda is None:
        assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    else:
        assert isinstance(torch.version.cuda, str)
    if not torch.cuda.is_available():
        # What is caught and quoted where a device does not work.
        for own in (torch.cuda, FakeTorch(0)):
            with pytest.raises((RuntimeError, AssertionError), match=r"\w"):
                own.init()


@pytest.mark.parametrize(
    ("torch", "assigned", "name"),
    [
        (FakeTorch(2), "cuda:1", "cuda:1"),
        (None, "cuda:1", "cuda:1"),  # the task brings something else than torch
        (None, "cpu", "cpu"),
        (FakeTorch(0, built=None), "cuda:0", "cpu"),
        (FakeTorch(2, built="20250201", kind="xpu"), "xpu:1", "xpu:1"),
        (FakeTorch(2), "xpu:1", "cpu"),
    ],
)
def test_the_device_that_is_used(install, torch: FakeTorch | None, assigned: str, name: str) -> None:
    install(torch)
    device = OwnDevice(assigned, vendor=INTEL if "xpu" in assigned else NVIDIA)
    assert (device.name, device.index, device.take_fault()) == (name, int(assigned[-1] == "1"), None)


def test_a_device_that_does_not_work_is_an_error_and_not_the_cpu(install) -> None:
    install(FakeTorch(0))
    device = OwnDevice("cuda:1", label="worker rank 1 on node7", shown={"CUDA_VISIBLE_DEVICES": "0,1"})
    words = "worker rank 1 on node7", "cuda:1", "'0,1'", "found version 11040", "CUDA 12.8", "nvidia-smi"
    text = refused(lambda: device.name, *words, error=NoDevice)
    assert device.take_fault() == text and device.take_fault() is None
    install(FakeTorch(2))
    assert (device.name, device.take_fault()) == ("cuda:1", None), "it was asked for again"
    install(FakeTorch(1))  # CUDA counts those before the first that it cannot find
    with pytest.raises(NoDevice, match="torch finds 1 devices"):
        _ = OwnDevice("cuda:1").name


def test_what_torch_could_use_or_cannot_use_is_said_once(install) -> None:
    amd, intel = FakeTorch(2, built="6.2", kind="hip"), FakeTorch(2, built="20250201", kind="xpu")
    for torch, device, words in (
        (
            FakeTorch(0, built=None),
            OwnDevice("cuda:0", label=NODE7),
            ("has a GPU, cuda:0", "setup.sh --cuda"),
        ),
        (FakeTorch(2), OwnDevice("cpu", label=NODE7), ("sees 2", "CUDA_VISIBLE_DEVICES")),
        (amd, OwnDevice("cpu", label=NODE7), ("sees 2", "CUDA_VISIBLE_DEVICES")),
        (intel, OwnDevice("cpu", label=NODE7), ("sees 2", "ZE_AFFINITY_MASK")),
        (FakeTorch(0), OwnDevice("cuda:0", label=NODE7, vendor=AMD), ("has a GPU, cuda:0", "without ROCm")),
        (amd, OwnDevice("xpu:0", label=NODE7, vendor=INTEL), ("has a GPU, xpu:0", "without XPU")),
        (amd, OwnDevice("cuda:1", vendor=AMD), ()),
        (intel, OwnDevice("xpu:1", vendor=INTEL), ()),
        (amd, OwnDevice("cuda:1", shown={"CUDA_VISIBLE_DEVICES": "0,1"}), ()),
        (FakeTorch(2), OwnDevice("cpu", shown={"CUDA_VISIBLE_DEVICES": ""}), ()),  # the CPU is asked for
        (FakeTorch(0), OwnDevice("cpu"), ()),
        (FakeTorch(0, built=None), OwnDevice("cpu"), ()),
        (FakeTorch(0), OwnDevice("cuda:0"), ()),  # an error says it
        (None, OwnDevice("cuda:0"), ()),
    ):
        install(torch)
        text = device.take_warning()
        assert (text is not None) == bool(words) and device.take_warning() is None
        assert text is None or all(word in text for word in (NODE7, *words)), text
    install(amd)
    with pytest.raises(NoDevice, match=r"HIP_VISIBLE_DEVICES is not set.*ROCm 6\.2.*rocm-smi"):
        _ = OwnDevice("cuda:2", vendor=AMD).name


@pytest.mark.parametrize(
    ("isolation", "asks"), [("fresh", "trial.device"), ("inline", "'torch' in sys.modules")]
)
def test_a_campaign_says_once_that_its_torch_cannot_use_the_gpu(
    terminal: Terminal, isolation: str, asks: str
) -> None:
    torch_that_finds((), terminal.directory, built=None)
    space = "hpo.SearchSpace(x=hpo.Float(0, 1))"
    terminal.write(
        "task.py", f"import sys, hpo, torch\ntask = hpo.Task({space}, lambda trial: float(bool({asks})))\n"
    )
    for visible, evaluations, times in (("0", 3, 1), ("", 6, 0)):
        terminal.environment["CUDA_VISIBLE_DEVICES"] = visible
        terminal.campaign(f'[evaluation]\nisolation = "{isolation}"', evaluations=evaluations)
        said = terminal.hpo("run", "c.toml", returns=0).stderr
        assert said.count("has a GPU, cuda:0, and its torch is built without CUDA") == times, said


def test_mig_instances_have_no_identity_for_nccl(install) -> None:
    install(FakeTorch(1))
    assert gpu.identity(0) == "cuda/8932f937"
    install(FakeTorch(1, name="NVIDIA A100-SXM4-40GB MIG 3g.20gb"))
    assert gpu.identity(0) is None


def test_each_rank_with_a_tile_of_its_own_makes_the_group_one_of_xccl(install, monkeypatch) -> None:
    torch = install(FakeTorch(2, kind="xpu"))
    torch.set_device = torch.calls.append
    torch.distributed = SimpleNamespace(is_xccl_available=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    mask = {"ZE_AFFINITY_MASK": "3,4"}
    device = OwnDevice("xpu:1", vendor=INTEL)
    assert gpu.select_for_group(device, mask) == "xpu/4" and torch.calls == [1]
    del torch.distributed.is_xccl_available  # torch before 2.8
    assert gpu.select_for_group(device, mask) is None


@pytest.mark.parametrize("torch", [None, FakeTorch(0)])
def test_where_cuda_was_not_used_nothing_is_asked_or_freed(install, torch: FakeTorch | None) -> None:
    install(torch)
    if torch is not None:
        torch.synchronize = lambda device: pytest.fail("asked")
    gpu.free()
    assert not gpu.in_use() and gpu.healthy() and (torch is None or torch.calls == [])


@pytest.mark.parametrize("name", ["empty_host_cache", "_host_emptyCache", None])
def test_memory_that_torch_keeps_is_given_back_by_the_name_that_this_torch_has(
    install, name: str | None
) -> None:
    torch = install(FakeTorch(1))
    if name != "empty_host_cache":
        del torch.accelerator.empty_host_cache
    if name == "_host_emptyCache":
        torch._C._host_emptyCache = lambda: torch.calls.append(name)
    gpu.free()
    assert torch.calls == ["empty_cache", *([name] if name else [])]


def test_an_error_that_comes_late_and_kernels_that_never_end_are_noticed_on_the_device_in_use(
    install,
) -> None:
    torch = install(FakeTorch(2))
    asked: list[int] = []
    torch.synchronize = asked.append
    assert gpu.healthy() and asked == [1]

    def fail(device: int = 0) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch.synchronize = fail
    assert not gpu.healthy()
    torch.synchronize, torch.current_device = asked.append, fail
    assert not gpu.healthy()
    over = threading.Event()
    torch.synchronize, torch.current_device = lambda device: over.wait(60) and None, lambda: 0
    try:
        assert not gpu.healthy(timeout_s=0.05)
    finally:
        over.set()


def test_a_function_is_compiled_anew_for_each_trial() -> None:
    """Dynamo gives a function up after its eighth compilation; in a process of its own, as torch is slow to load."""
    script = """
import torch
import torch._dynamo
from hpo.evaluation import gpu

torch._dynamo.config.automatic_dynamic_shapes = False
limit, fail = "recompile_limit", "fail_on_recompile_limit_hit"
if not hasattr(torch._dynamo.config, limit):  # before torch 2.7
    limit, fail = "cache_size_limit", "fail_on_cache_limit_hit"
setattr(torch._dynamo.config, fail, True)
function = torch.compile(lambda x: x * 2, backend="eager")
for trial in range(getattr(torch._dynamo.config, limit) + 2):
    function(torch.ones(trial + 2))
    gpu.free()
calls = []
torch.compiler.reset = lambda: calls.append("reset")
gpu.free()
assert calls == [], "nothing has been compiled since"
"""
    called(sys.executable, "-c", script)

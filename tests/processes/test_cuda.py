"""What evaluations ask of CUDA, with a torch that says what each test needs it to say."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from places import ROOT

from hpo.evaluation import cuda
from hpo.evaluation.cuda import NoDevice, OwnDevice


class FakeTorch:
    """A torch built for ``built`` that finds so many devices."""

    def __init__(self, count: int, built: str | None = "12.8", name: str = "NVIDIA H200") -> None:
        self.version = SimpleNamespace(cuda=built)
        self.cuda = self
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


def test_torch_has_what_the_stand_in_stands_for() -> None:
    import torch

    stand_in = FakeTorch(1)
    for name in ("is_available", "device_count", "init", "is_initialized", "current_device", "empty_cache"):
        inspect.signature(getattr(torch.cuda, name)).bind()
        inspect.signature(getattr(stand_in.cuda, name)).bind()
    for name in ("synchronize", "get_device_properties"):
        inspect.signature(getattr(torch.cuda, name)).bind(0)
        inspect.signature(getattr(stand_in.cuda, name)).bind(0)
    for name in ("is_available", "device_count", "is_initialized"):
        assert type(getattr(torch.cuda, name)()) is type(getattr(stand_in.cuda, name)()), name
    if torch.version.cuda is None:
        assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    else:
        assert type(torch.version.cuda) is type(stand_in.version.cuda)
    if not torch.cuda.is_available():
        # What is caught and quoted where a device does not work.
        for cuda_of in (torch.cuda, FakeTorch(0).cuda):
            with pytest.raises((RuntimeError, AssertionError), match=r"\w"):
                cuda_of.init()


def test_every_device_of_this_machine_is_used_and_none_beyond() -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        assert OwnDevice(f"cuda:{index}").name == f"cuda:{index}"
    beyond = OwnDevice(f"cuda:{count}")
    if torch.version.cuda is None:
        assert beyond.name == "cpu"
    else:
        with pytest.raises(NoDevice, match="cannot use its GPU"):
            _ = beyond.name


def test_gpus_of_amd_are_said_where_none_is_used_and_used_where_they_are_named(install) -> None:
    torch = FakeTorch(2, built=None)
    torch.version.hip = "6.2"  # type: ignore[attr-defined]
    install(torch)
    text = OwnDevice("cpu", label="the evaluator on node7").take_warning()
    assert text is not None and "its torch sees 2. Start with CUDA_VISIBLE_DEVICES naming those" in text
    named = OwnDevice("cuda:1", visible="0,1")
    assert named.name == "cuda:1" and named.take_warning() is None
    with pytest.raises(NoDevice, match=r"torch is built for ROCm 6\.2"):
        _ = OwnDevice("cuda:2", visible="0,1,2").name


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def become(torch: FakeTorch | None) -> FakeTorch | None:
        for name in ("torch", "torch.cuda"):
            monkeypatch.setitem(sys.modules, name, torch)
        monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)
        return torch

    return become


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


def test_torch_without_cuda_where_there_is_a_device_is_warned_of_once(install) -> None:
    install(FakeTorch(0, built=None))
    device = OwnDevice("cuda:0", label="the evaluator on node7")
    text = device.take_warning()
    assert text is not None and device.take_warning() is None
    assert "the evaluator on node7 has a GPU, cuda:0, and its torch is built without CUDA" in text
    assert "bash jobs/setup.sh --cuda" in text and "CUDA_VISIBLE_DEVICES empty" in text
    assert OwnDevice("cpu").take_warning() is None, "there is nothing to use"
    for torch in (None, FakeTorch(0)):
        install(torch)
        assert OwnDevice("cuda:0").take_warning() is None, "not loaded, or built with CUDA"


def test_gpus_that_torch_sees_and_nothing_else_shows_are_said(install) -> None:
    install(FakeTorch(2))
    device = OwnDevice("cpu", label="the evaluator on node7")
    text = device.take_warning()
    assert text is not None and device.take_warning() is None
    assert "the evaluator on node7 trains on the CPU" in text and "CUDA_VISIBLE_DEVICES naming those" in text
    assert OwnDevice("cpu", visible="").take_warning() is None, "the CPU is asked for"
    install(FakeTorch(0))
    assert OwnDevice("cpu").take_warning() is None, "there is none"


@pytest.mark.parametrize(
    ("isolation", "asks"), [("fresh", "trial.device"), ("inline", "'torch' in sys.modules")]
)
def test_a_campaign_says_once_that_its_torch_cannot_use_the_gpu(tmp_path, isolation: str, asks: str) -> None:
    (tmp_path / "task.py").write_text(f"""
import sys, types
import hpo
torch = types.ModuleType("torch")
torch.version = types.SimpleNamespace(cuda=None)
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
torch.manual_seed = lambda seed: None
sys.modules["torch"] = torch
task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: float(bool({asks})))
""")
    text = 'task = "task.py:task"\ndirectory = "run"\nevaluations = 3\nsearch.kind = "random"\n'
    text += f'evaluation.isolation = "{isolation}"\n'
    (tmp_path / "campaign.toml").write_text(text)
    warning = "has a GPU, cuda:0, and its torch is built without CUDA"
    for visible, times in (("0", 1), ("", 0)):
        (tmp_path / "campaign.toml").write_text(text.replace("run", f"run{visible}"))
        done = subprocess.run(
            [sys.executable, "-m", "hpo", "run", "campaign.toml"],
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(warning) == times, done.stderr


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


@pytest.mark.parametrize("torch", [None, FakeTorch(0)])
def test_where_cuda_was_not_used_nothing_is_asked_or_freed(install, torch: FakeTorch | None) -> None:
    install(torch)
    if torch is not None:
        torch.synchronize = lambda device: pytest.fail("asked")
    cuda.free()
    assert not cuda.used() and cuda.healthy() and (torch is None or torch.calls == [])


def test_memory_that_torch_keeps_is_given_back(install) -> None:
    torch = install(FakeTorch(1))
    cuda.free()
    assert torch.calls == ["empty_cache", "empty_host_cache"]


@pytest.mark.parametrize("there", [True, False])
def test_page_locked_memory_is_given_back_by_the_name_that_this_torch_has(install, there: bool) -> None:
    torch = install(FakeTorch(1))
    del torch.accelerator.empty_host_cache
    if there:
        torch._C._host_emptyCache = lambda: torch.calls.append("_host_emptyCache")
    cuda.free()
    assert torch.calls == ["empty_cache", *["_host_emptyCache"] * there]


def test_an_error_that_comes_late_is_noticed_on_the_device_in_use(install) -> None:
    torch = install(FakeTorch(2))
    asked: list[int] = []
    torch.synchronize = asked.append
    assert cuda.healthy() and asked == [1]

    def fail(device: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch.synchronize = fail
    assert not cuda.healthy()
    torch.synchronize, torch.current_device = asked.append, lambda: fail(0)
    assert not cuda.healthy()


def test_kernels_that_never_end_are_waited_for_so_long_only(install) -> None:
    torch = install(FakeTorch(1))
    over = threading.Event()
    torch.synchronize = lambda device: over.wait(60) and None
    try:
        assert not cuda.healthy(timeout_s=0.05)
    finally:
        over.set()


def test_a_function_is_compiled_anew_for_each_trial() -> None:
    """Dynamo gives a function up after its eighth compilation; in a process of its own, as torch is slow to load."""
    script = """
import torch
import torch._dynamo
from hpo.evaluation import cuda

torch._dynamo.config.automatic_dynamic_shapes = False
limit, fail = "recompile_limit", "fail_on_recompile_limit_hit"
if not hasattr(torch._dynamo.config, limit):  # before torch 2.7
    limit, fail = "cache_size_limit", "fail_on_cache_limit_hit"
setattr(torch._dynamo.config, fail, True)
function = torch.compile(lambda x: x * 2, backend="eager")
for trial in range(getattr(torch._dynamo.config, limit) + 2):
    function(torch.ones(trial + 2))
    cuda.free()
calls = []
torch.compiler.reset = lambda: calls.append("reset")
cuda.free()
assert calls == [], "nothing has been compiled since"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

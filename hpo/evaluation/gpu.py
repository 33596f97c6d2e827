"""The GPU of a rank as torch uses it: whether it works, is poisoned by an error, and gives its memory back.

Imports torch only where there is a device."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from hpo.errors import CampaignError
from hpo.evaluation.devices import INTEL, NVIDIA, Vendor, is_mig, vendor_of, visible_devices

_SYNCHRONIZE_S = 20.0
"""Work that a task has queued when it returns may take seconds; less than the other ranks get once a rank has ended."""


class NoDevice(CampaignError):
    """A rank has a device, and torch could use it, but it does not work: that is the host's fault."""


class OwnDevice:
    """A rank's own device: ``name`` as torch calls it, "cpu", "cuda:0" or "xpu:0".

    ``label``: how errors name the rank; ``shown``: the variables that are set of those by which the ``vendor`` of the
    host's GPUs shows them, for errors too."""

    def __init__(
        self,
        name: str = "cpu",
        *,
        label: str = "this rank",
        shown: Mapping[str, str] | None = None,
        vendor: Vendor = NVIDIA,
    ) -> None:
        self._assigned = name
        self._label = label
        self._shown = shown or {}
        self._vendor = vendor
        self._found = name if name == "cpu" else None
        self._fault: str | None = None
        self._warned = False
        self.index = int(name.partition(":")[2] or 0)

    @property
    def name(self) -> str:
        """The device to use: "cpu" too where this torch was not built for the GPU. Looked for when first asked for.

        Raises NoDevice where torch was built with it and the device does not work: on the CPU the task might take
        days in place of hours, unnoticed."""
        if self._found is None:
            self._fault = None
            try:
                self._found = self._assigned if self._works() else "cpu"
            except NoDevice as error:
                self._fault = str(error)
                raise
        return self._found

    def take_fault(self) -> str | None:
        """Why it did not work when it was last asked for; returned once. The task may have caught the error."""
        fault, self._fault = self._fault, None
        return fault

    def take_warning(self) -> str | None:
        """A sentence for the user where the task's torch cannot use the device that is there, or could use a device
        that was not found; returned once, as soon as torch is loaded."""
        torch = sys.modules.get("torch")
        if self._warned or torch is None or not hasattr(torch, "version"):
            return None
        vendor = self._vendor
        if self._assigned != "cpu" and not _built_for(torch, vendor.builds):
            self._warned = True
            software = next(iter(vendor.builds.values()))
            remedy = (
                "Run `bash jobs/setup.sh --cuda` for a torch that uses GPUs."
                if vendor is NVIDIA
                else f"Give it a torch that is built for {software}, as jobs/README.md says."
            )
            return (
                f"{self._label} has a GPU, {self._assigned}, and its torch is built without {software}: it trains on "
                f"the CPU, which may take days in place of hours. {remedy} To train on CPUs, start with "
                "CUDA_VISIBLE_DEVICES empty."
            )
        if self._assigned == "cpu" and not self._shown:
            self._warned = True
            try:
                found = _module(torch).device_count() if _built_for(torch) else 0
            except (RuntimeError, AssertionError):  # partly imported, or the driver is in trouble
                return None
            if found:
                return (
                    f"{self._label} trains on the CPU, as neither /proc nor /sys nor /dev shows a GPU to train on, and "
                    f"its torch sees {found}. Start with {_variable(torch)} naming those to use, such as "
                    f"{','.join(map(str, range(found)))}; with CUDA_VISIBLE_DEVICES empty, to train on CPUs."
                )
        return None

    def _works(self) -> bool:
        try:
            import torch
        except ImportError:  # the task brings something else that can use it
            return True
        built = _built_for(torch, self._vendor.builds)
        if built is None:
            return False
        module = _module(torch)
        if module.is_available() and self.index < module.device_count():
            return True
        try:
            module.init()
            reason = f"torch finds {module.device_count()} devices"
        except (RuntimeError, AssertionError) as error:
            reason = (str(error).splitlines() or ["no reason is given"])[0].rstrip(".")
        variables = [f"{name} is {value!r}" for name, value in self._shown.items()]
        visible = ", ".join(variables) or f"{self._vendor.default} is not set"
        raise NoDevice(
            f"{self._label} cannot use its GPU, {self._assigned} ({visible}): {reason}. torch is built for {built}. "
            f"See with {self._vendor.tool} on that host whether the GPU is there and its driver new enough, and that "
            f"{self._vendor.default} names what is there. To train on CPUs, start with CUDA_VISIBLE_DEVICES empty."
        )


def evaluator_device(environment: Mapping[str, str], index: int | None, label: str) -> OwnDevice:
    """The device of this ``index`` among those that ``bind_device`` lets an evaluator see; ``label`` names the rank."""
    vendor = vendor_of(environment)
    name = "cpu" if index is None else f"{vendor.device}:{index}"
    names = dict.fromkeys((*vendor.variables, NVIDIA.default))
    shown = {variable: environment[variable] for variable in names if variable in environment}
    return OwnDevice(name, label=label, shown=shown, vendor=vendor)


def inline_device(environment: Mapping[str, str], local_rank: int, label: str) -> OwnDevice:
    """The device of a rank that evaluates in its own process, where nothing can be hidden from torch.

    ``local_rank``: among all ranks of the launch on its host; ``label`` names the rank."""
    visible = visible_devices(environment)
    index = 0 if is_mig(visible) else local_rank % max(1, len(visible))
    return evaluator_device(environment, index if visible else None, label)


def select_for_group(device: OwnDevice, environment: Mapping[str, str]) -> str | None:
    """Make ``device`` torch's current GPU; its identity for ``choose_backend``, None where NCCL or xccl cannot use
    it."""
    import torch.distributed

    try:
        if device.name == "cpu":
            return None
    except NoDevice:
        # The task gets the error when it asks for the device; one that wants no GPU goes on.
        device.take_fault()
        return None
    _module(torch).set_device(device.index)
    if device.name.startswith("xpu"):
        # torch before 2.8 has no xccl.
        usable = getattr(torch.distributed, "is_xccl_available", bool)()
        return f"xpu/{visible_devices(environment)[device.index]}" if usable else None
    if not torch.distributed.is_nccl_available() or is_mig(visible_devices(environment)):
        return None
    return identity(device.index)


class DeviceLink:
    """A trial's way to its rank's device. ``tell`` gets a sentence where the task cannot use the device that is
    there."""

    def __init__(self, device: OwnDevice, tell: Callable[[str], object]) -> None:
        self._device = device
        self._tell = tell

    @property
    def device(self) -> str:
        name = self._device.name
        self.warn()
        return name

    def warn(self) -> None:
        if (text := self._device.take_warning()) is not None:
            self._tell(text)


_BUILDS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}


def _built_for(torch: ModuleType, builds: Mapping[str, str] = _BUILDS) -> str | None:
    """Which of the ``builds`` this torch is, with its version; None for another. AMD's GPUs are called cuda:0, too."""
    versions = {software: getattr(torch.version, name, None) for name, software in builds.items()}
    return next(
        (f"{software} {version}" for software, version in versions.items() if version is not None), None
    )


def _module(torch: ModuleType) -> Any:
    """``torch.cuda`` or ``torch.xpu``: what this torch uses GPUs with."""
    return torch.xpu if getattr(torch.version, "xpu", None) is not None else torch.cuda


def _variable(torch: ModuleType) -> str:
    return INTEL.default if getattr(torch.version, "xpu", None) is not None else NVIDIA.default


def identity(index: int) -> str | None:
    """NCCL's identity of a device; None for a MIG instance, which NCCL takes for its whole GPU."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    # Not the index: where the launcher gives each rank one device, all of them are called 0.
    return None if " MIG " in properties.name else f"cuda/{properties.uuid}"


def in_use() -> Any | None:
    """The module of torch by which this process has used GPUs, ``torch.cuda`` or ``torch.xpu``; None where it has used
    none."""
    modules = (sys.modules.get(name) for name in ("torch.cuda", "torch.xpu"))
    return next((module for module in modules if module is not None and module.is_initialized()), None)


def healthy(timeout_s: float = _SYNCHRONIZE_S) -> bool:
    """Whether all that the GPU was given to do has come to its end, and without an error: one poisons all later calls.

    A kernel that waits for a rank which has gone never ends, so a thread waits for it in our place."""
    module = in_use()
    if module is None:
        return True
    done: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def wait(device: int) -> None:
        try:
            module.synchronize(device)
            done.put(True)
        except RuntimeError:
            done.put(False)

    try:
        # Asked here: each thread has a current device of its own.
        threading.Thread(target=wait, args=(module.current_device(),), daemon=True).start()
        return done.get(timeout=timeout_s)
    except (RuntimeError, queue.Empty):
        return False


def free() -> None:
    """Give back what the last trial has left behind: memory that torch keeps for itself, of the GPU, which other
    processes on the device lack, and of the host, which is page-locked there; and compiled code. Dynamo compiles a
    function a limited number of times, however many models it has served."""
    torch = sys.modules.get("torch")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if torch is not None and getattr(frames, "FRAME_COMPILE_COUNTER", None):
        torch.compiler.reset()
    if torch is not None and (module := in_use()) is not None:
        module.empty_cache()
        # torch 2.6 has it under an earlier name, for CUDA alone.
        accelerator = getattr(torch, "accelerator", None)
        host = getattr(accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
        if host is not None:
            host()

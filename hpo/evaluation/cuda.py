"""The CUDA device of a rank: whether it works, is poisoned by an error, and gives its memory back.

Imports torch only where there is a device."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from types import ModuleType

from hpo.errors import CampaignError

_SYNCHRONIZE_S = 20.0
"""Work that a task has queued when it returns may take seconds; less than the other ranks get once a rank has ended."""


class NoDevice(CampaignError):
    """A rank has a device, and torch could use it, but it does not work: that is the host's fault."""


class OwnDevice:
    """A rank's own device: ``name`` as torch calls it, "cpu" or "cuda:0".

    ``label``: how errors name the rank; ``visible``: the value of CUDA_VISIBLE_DEVICES, for errors too."""

    def __init__(self, name: str = "cpu", *, label: str = "this rank", visible: str | None = None) -> None:
        self._assigned = name
        self._label = label
        self._visible = visible
        self._found = name if name == "cpu" else None
        self._fault: str | None = None
        self._warned = False
        self.index = int(name.partition(":")[2] or 0)

    @property
    def name(self) -> str:
        """The device to use: "cpu" too where this torch was built without CUDA. Looked for when first asked for.

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
        built = _built_for(torch)
        if self._assigned != "cpu" and not built:
            self._warned = True
            return (
                f"{self._label} has a GPU, {self._assigned}, and its torch is built without CUDA: it trains on the "
                "CPU, which may take days in place of hours. Run `bash jobs/setup.sh --cuda` for a torch that uses "
                "GPUs. To train on CPUs, start with CUDA_VISIBLE_DEVICES empty."
            )
        if self._assigned == "cpu" and built and self._visible is None:
            self._warned = True
            try:
                found = torch.cuda.device_count()
            except (RuntimeError, AssertionError):  # partly imported, or the driver is in trouble
                return None
            if found:
                return (
                    f"{self._label} trains on the CPU, as neither /proc/driver/nvidia/gpus nor /dev shows a GPU, and "
                    f"its torch sees {found}. Start with CUDA_VISIBLE_DEVICES naming those to use, such as "
                    f"{','.join(map(str, range(found)))}; empty, to train on CPUs."
                )
        return None

    def _works(self) -> bool:
        try:
            import torch
        except ImportError:  # the task brings something else that can use it
            return True
        if torch.cuda.is_available() and self.index < torch.cuda.device_count():
            return True
        if not _built_for(torch):
            return False
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            reason = f"torch finds {torch.cuda.device_count()} devices"
        except (RuntimeError, AssertionError) as error:
            reason = (str(error).splitlines() or ["no reason is given"])[0].rstrip(".")
        visible = "CUDA_VISIBLE_DEVICES is " + ("not set" if self._visible is None else repr(self._visible))
        raise NoDevice(
            f"{self._label} cannot use its GPU, {self._assigned} ({visible}): {reason}. torch is built for "
            f"{_built_for(torch)}. See with nvidia-smi on that host whether the GPU is there and its driver new "
            "enough, and that CUDA_VISIBLE_DEVICES names what is there. To train on CPUs, start with it empty."
        )


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


def _built_for(torch: ModuleType) -> str | None:
    """The kind of GPUs that this torch can use, with its version, if any. AMD's GPUs are called cuda:0, too."""
    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda}"
    hip = getattr(torch.version, "hip", None)
    return None if hip is None else f"ROCm {hip}"


def identity(index: int) -> str | None:
    """NCCL's identity of a device; None for a MIG instance, which NCCL takes for its whole GPU."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    # Not the index: where the launcher gives each rank one device, all of them are called 0.
    return None if " MIG " in properties.name else str(properties.uuid)


def used() -> bool:
    """Whether this process has used CUDA."""
    imported = sys.modules.get("torch.cuda")
    return imported is not None and bool(imported.is_initialized())


def healthy(timeout_s: float = _SYNCHRONIZE_S) -> bool:
    """Whether all that CUDA was given to do has come to its end, and without an error: one poisons all later calls.

    A kernel that waits for a rank which has gone never ends, so a thread waits for it in our place."""
    if not used():
        return True
    import torch

    done: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def wait(device: int) -> None:
        try:
            torch.cuda.synchronize(device)
            done.put(True)
        except RuntimeError:
            done.put(False)

    try:
        # Asked here: each thread has a current device of its own.
        threading.Thread(target=wait, args=(torch.cuda.current_device(),), daemon=True).start()
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
    if torch is not None and used():
        torch.cuda.empty_cache()
        # torch 2.6 has it under an earlier name, for CUDA alone.
        accelerator = getattr(torch, "accelerator", None)
        host = getattr(accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
        if host is not None:
            host()

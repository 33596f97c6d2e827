"""What the evaluators of tests/gpu do: the campaigns there name these tasks.

Imported by evaluators and, as all tasks are, by ranks: torch is imported inside."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import hpo

CYCLES = 2 * 10**11
"""Of an endless kernel: two minutes at 1.7 GHz, so that one which nothing ends does not stay on the GPU for good."""
EPOCHS, STEPS = 150, 16


def state_of(trial: hpo.Trial) -> Any:
    """Log the process, its memory and what of the device is in use, by all processes; return the device."""
    import torch

    device = torch.device(trial.device)
    resident = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    trial.log(pid=os.getpid(), device=str(device), resident_kb=int(resident.split()[1]))
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        trial.log(used=total - free, reserved=torch.cuda.memory_reserved(device))
    return device


def spin(device: Any) -> None:
    """Have the GPU do something that does not end."""
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda._sleep(CYCLES)


def exhaust(device: Any) -> None:
    """Take memory until there is no more. RuntimeError, on a GPU torch.OutOfMemoryError."""
    import torch

    block = torch.cuda.mem_get_info(device)[1] // 8 if device.type == "cuda" else 2**60
    held = [torch.empty(block, dtype=torch.uint8, device=device) for _ in range(9)]
    raise AssertionError(f"{len(held)} eighths of the memory were there")


def break_assertion(device: Any) -> Any:
    """A kernel with an index out of range: no error shows until the CPU waits for the GPU."""
    import torch

    return torch.zeros(4, device=device)[torch.full((1,), 10, device=device)]


def misbehave(trial: hpo.Trial) -> float:
    import torch

    what = trial.params["what"]
    device = state_of(trial)
    product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    assert product.sum().item() == 64.0**3
    if what == "memory":
        exhaust(device)
    elif what == "memory, caught":
        try:
            exhaust(device)
        except RuntimeError as error:
            trial.log(caught=type(error).__name__)
    elif what == "assertion":
        break_assertion(device)
        torch.cuda.synchronize(device)
    elif what == "assertion, caught":
        try:
            break_assertion(device)
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            trial.log(caught=type(error).__name__)
    elif what == "assertion, unseen":
        break_assertion(device)
    elif what == "endless":
        spin(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        threading.Event().wait()
    elif what == "killed":
        spin(device)
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


WHAT = (
    "fine",
    "memory",
    "memory, caught",
    "assertion",
    "assertion, caught",
    "assertion, unseen",
    "endless",
    "killed",
)
misbehaving = hpo.Task(hpo.SearchSpace(what=hpo.Categorical(*WHAT), turn=hpo.Int(0, 100)), misbehave)


def compile_and_train(trial: hpo.Trial) -> float:
    """A small model, compiled, one step; each size anew, as another campaign's configuration would be."""
    import torch
    from inductor import backend_for

    device = state_of(trial)
    backend = backend_for(device)
    begun = time.perf_counter()
    torch.manual_seed(trial.seed)
    width = trial.params["width"]
    model = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.GELU(), torch.nn.Linear(width, 1)).to(
        device
    )
    step = torch.compile(model, backend=backend)
    loss = step(torch.ones(16, 32, device=device)).square().mean()
    loss.backward()
    value = loss.item()
    trial.log(seconds=time.perf_counter() - begun)
    return value


compiling = hpo.Task(
    # With the turn there are more configurations than are evaluated: a search ends when it has been through its space.
    hpo.SearchSpace(width=hpo.Ordinal(16, 32, 64, 128), turn=hpo.Int(0, 1_000_000)),
    compile_and_train,
)


def manage_group(trial: hpo.Trial) -> float:
    """As a script of one's own begins and ends, with torch's own averaging between."""
    import torch
    import torch.distributed as dist

    begun = time.perf_counter()
    device = state_of(trial)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    model(torch.ones(64, 512, device=device)).square().mean().backward()
    ones = torch.ones(1000, device=device)
    dist.all_reduce(ones)
    value = ones.sum().item()
    trial.log(backend=dist.get_backend(), ranks=dist.get_world_size())
    dist.destroy_process_group()
    assert not dist.is_initialized()
    files, threads = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    trial.log(files=files, threads=threads, seconds=time.perf_counter() - begun)
    return value


managing = hpo.Task(hpo.SearchSpace(turn=hpo.Int(0, 1_000_000)), manage_group)


def train(trial: hpo.Trial) -> float:
    """A training of this worker's ranks that says in a file what it does, and stops and goes on as it is asked to."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import trainers

    device = state_of(trial)
    notes = Path(os.environ["GPU_TEST_NOTES"])
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8 * STEPS * trial.size, 16, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    torch.manual_seed(trial.seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    campaign = trial.training(value="train_loss")
    asked = campaign["report"]

    class Report:
        def set_last_epoch(self, epochs: int) -> None:
            asked.set_last_epoch(epochs)

        def __call__(self, epoch: int, metrics: dict[str, float]) -> None:
            if trial.rank == 0:
                with notes.open("a") as file:
                    file.write(f"{trial.id} {epoch}\n")
            asked(epoch, metrics)

    result = trainers.train(
        model, data, loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=trial.params["lr"], momentum=0.9),
        epochs=EPOCHS, batch_size=8, **{**campaign, "report": Report()},
    )  # fmt: skip
    trial.log(epochs=len(result.history), on=str(next(model.parameters()).device))
    return result.metrics["train_loss"]


training = hpo.Task(hpo.SearchSpace(lr=hpo.Float(1e-4, 1e-2, log=True)), train)

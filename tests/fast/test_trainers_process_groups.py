"""Process groups are made with the model's device as the current one, and given back without waiting for threads that
wait for us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers import loop, own_loop
from trainers.communication import process_groups
from trainers.communication.communicator import Communicator
from trainers.evaluation import evaluate


def test_gloo_s_threads_get_to_let_go_where_torch_holds_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []

    class Group:
        def __del__(self) -> None:
            ends.append("group")

    thread = threading.Thread(target=lambda: ends.append("thread"))

    def others_run(seconds: float) -> None:
        thread.start()
        thread.join(60)

    monkeypatch.setattr(process_groups, "_HOLDS_INTERPRETER", True)
    monkeypatch.setattr(process_groups.time, "sleep", others_run)
    monkeypatch.setattr(process_groups.dist, "destroy_process_group", lambda group: None)
    groups: list[Any] = [Group()]
    process_groups.give_back(groups)
    assert ends == ["thread", "group"] and groups == []


# The device


def one_epoch(net: nn.Module, samples: TensorDataset) -> None:
    trainers.train(net, samples, loss=mse_loss, optimizer=torch.optim.AdamW, epochs=1, batch_size=2)


def steps_of_ones_own(net: nn.Module, samples: TensorDataset) -> None:
    trainers.wrap(net, torch.optim.AdamW(net.parameters()), epochs=1, steps_per_epoch=2).close()


def evaluation(net: nn.Module, samples: TensorDataset) -> None:
    trainers.evaluate(net, samples, metrics={"loss": mse_loss}, batch_size=2)


@pytest.mark.parametrize(
    ("module", "begin"),
    [(loop, one_epoch), (own_loop, steps_of_ones_own), (evaluate, evaluation)],
    ids=["train", "wrap", "evaluate"],
)
def test_the_models_device_is_the_current_one_before_a_communicator_is_made(
    monkeypatch: pytest.MonkeyPatch, module: Any, begin: Callable[..., None]
) -> None:
    """What torch or NCCL allocates where no device is named would else lie on the first GPU, for each rank."""
    inside, made = [0], []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        inside[0] += 1
        yield
        inside[0] -= 1

    def communicator(**keywords: Any) -> Communicator:
        made.append(inside[0])
        return Communicator(**keywords)

    monkeypatch.setattr(module, "current", current)
    monkeypatch.setattr(module, "Communicator", communicator)
    begin(nn.Linear(3, 1), TensorDataset(torch.ones(4, 3), torch.ones(4, 1)))
    assert made == [1]

"""Muon for hidden matrices beside another optimizer, chosen by the model's modules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import After, assert_identical, state_of
from skips import not_possible_here
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import trainers
from trainers.optim.muon import hidden_matrices

if not hasattr(torch.optim, "Muon"):
    not_possible_here("before torch 2.9 there is no Muon")

ADAMW = partial(torch.optim.AdamW, lr=1e-2)
MUON = trainers.muon(lr=0.02, others=ADAMW, weight_decay=0.0)


class Words(nn.Module):
    """A model of words whose last layer has the embedding's weights, if ``tied``."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(4, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden, self.mixed = nn.Linear(8, 8), nn.Conv1d(8, 8, 1)
        self.last = nn.Linear(8, 11)
        if tied:
            self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.places
        x = self.hidden(self.attention(x, x, x)[0]).relu()
        out: Tensor = self.last(self.mixed(x.transpose(1, 2)).mean(2))
        return out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_matrices_of_hidden_layers_are_muons(tied: bool, grouped: bool) -> None:
    model = Words(tied=tied)
    model.hidden.bias.requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    groups: Any = [{"params": trained[:3], "lr": 0.5}, {"params": trained[3:]}] if grouped else trained
    muon, others = MUON(groups, model)
    names = {id(one): name for name, one in model.named_parameters()}
    found = {names[id(one)] for group in muon.param_groups for one in group["params"]}
    assert found == {"attention.in_proj_weight", "attention.out_proj.weight", "hidden.weight"}
    assert {group["lr"] for group in muon.param_groups} == ({0.5, 0.02} if grouped else {0.02})
    rest = [id(one) for group in others.param_groups for one in group["params"]]
    assert sorted(rest) == sorted(
        {id(one) for one in trained}.difference(rest for rest in names if names[rest] in found)
    )


DATA = TensorDataset(
    torch.randint(11, (24, 4), generator=torch.Generator().manual_seed(0)), torch.arange(24) % 11
)


def train(**given: Any) -> dict[str, Tensor]:
    model = Words()
    settings = {"optimizer": MUON, "epochs": 2, "batch_size": 4, "progress": False, **given}
    trainers.train(model, DATA, loss=nn.functional.cross_entropy, **settings)  # type: ignore[arg-type]
    return state_of(model)


def test_it_trains_as_both_do_and_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    def by_hand(parameters: Any) -> list[torch.optim.Optimizer]:
        matrices = [one for one in parameters if one.shape in ((24, 8), (8, 8))]
        others = [one for one in parameters if all(one is not other for other in matrices)]
        return [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0), ADAMW(others)]

    whole = train()
    assert_identical(whole, train(optimizer=by_hand))
    with pytest.raises(trainers.Interrupted):
        train(checkpoint=tmp_path, interrupt=After(5))
    assert_identical(whole, train(checkpoint=tmp_path))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"lr": -1.0}, "lr = -1.0: must be a number of at least 0"),
        ({"others": 3}, "others = 3: must be a function"),
        ({"wd": 0.1}, "does not take these settings.*'wd'"),
        ({"weight_decay": -0.1}, "-0.1"),
    ],
)
def test_wrong_settings_are_refused_at_once(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trainers.muon(**{"lr": 0.02, "others": ADAMW, **given})


def test_norms_and_frozen_layers_are_not_muons() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm([4, 6]), nn.Linear(6, 2), nn.LayerNorm([4, 2]))
    assert [*map(id, hidden_matrices(model))] == [id(model[0].weight)]
    model[0].weight.requires_grad_(False)
    (others,) = MUON([one for one in model.parameters() if one.requires_grad], model)
    assert isinstance(others, torch.optim.AdamW)


def test_a_model_without_a_hidden_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no hidden layer.*Use the optimizer"):
        MUON([*nn.Linear(3, 2).parameters()], nn.Linear(3, 2))

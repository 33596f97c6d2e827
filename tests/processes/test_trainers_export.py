from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases, combinations
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import trainers
from search_spaces.networks.vgg import cifar_vgg16
from search_spaces.networks.vit import ViT
from trainers.lowrank.layers import matrix_weights

METHODS: dict[str, Any] = {
    "ddp": trainers.DDP(),
    "oialr": trainers.OIALR(delay=2, update_every=1, sigma_cutoff=0.5),
    "oialr-local": trainers.OIALR(
        delay=2,
        update_every=1,
        sigma_cutoff=0.5,
        synchronisation=trainers.LocalSGD(world_every=2, households=1),
    ),
    "ab": trainers.AB(warmup_steps=2, ab_steps=2, group_size=None, groups=False),
}


def network(kind: str = "vit", seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "vgg":
        return cifar_vgg16(classes=4, width=8)
    return ViT(side=32, patch=8, classes=4, dim=32, depth=2, heads=4, qkv_bias=False)


IMAGES = TensorDataset(
    torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4
)


def trained(
    checkpoint: Path, method: str, kind: str = "vit", *, net: nn.Module | None = None, **changed: Any
) -> nn.Module:
    model = network(kind, seed=0) if net is None else net
    trainers.train(
        model,
        IMAGES,
        IMAGES,
        loss=nn.functional.cross_entropy,
        method=METHODS[method],
        batch_size=8,
        checkpoint=checkpoint,
        **{"epochs": 3, "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), **changed},
    )
    return model.eval()


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(IMAGES.tensors[0])


@pytest.mark.parametrize(("method", "merge", "kind"), combinations(METHODS, [False, True], ["vit", "vgg"]))
def test_the_plain_model_answers_as_the_trained_one(
    tmp_path: Path, method: str, merge: bool, kind: str
) -> None:
    expected = outputs(trained(tmp_path / "checkpoint", method, kind))
    loaded = trainers.load_trained(network(kind), tmp_path / "checkpoint", merge=merge)
    assert torch.allclose(outputs(loaded), expected, atol=1e-4)
    ordinary = network(kind)
    low_rank = "oialr" in method and not merge
    assert any(weight.factors for weight in matrix_weights(loaded)) == low_rank
    if not low_rank:
        assert loaded.state_dict().keys() == ordinary.state_dict().keys()
        assert {type(module) for module in loaded.modules()} == {type(m) for m in ordinary.modules()}
    trainers.save_model(loaded, tmp_path / "model.safetensors", {"task": "here"})
    for merging in (merge, True):
        again = trainers.load_model(network(kind), tmp_path / "model.safetensors", merge=merging)
        assert torch.allclose(outputs(again), expected, atol=1e-4)
    if not low_rank:
        from safetensors.torch import load_file

        ordinary.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert torch.allclose(outputs(ordinary), expected, atol=1e-4)


class Twice(nn.Module):
    """A block that stands in two places, beside something that is no tensor in the state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into = nn.Linear(3072, 24)
        self.first = nn.Sequential(nn.Linear(24, 24), nn.Tanh())
        self.second = self.first
        self.out = nn.Linear(24, 4)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.second(self.first(self.into(x.flatten(1)))))
        return out


@pytest.mark.parametrize("merge", [False, True])
def test_layers_in_several_places_and_state_of_any_kind_are_loaded(tmp_path: Path, merge: bool) -> None:
    """Those of the best epoch, here of the first, where it is restored."""
    stopping = trainers.EarlyStopping(metric="epoch", patience=9, restore_best=True)
    model = trained(tmp_path, "oialr", net=Twice(), early_stopping=stopping)
    loaded = trainers.load_trained(Twice(), tmp_path, merge=merge)
    assert any(weight.factors for weight in matrix_weights(loaded)) != merge
    assert torch.allclose(outputs(loaded), outputs(model), atol=1e-5)
    with pytest.raises(ValueError, match="_extra_state"):
        trainers.save_model(loaded, tmp_path / "model.safetensors")


@pytest.mark.parametrize("merge", cases([True], nightly=[False]))
def test_a_compiled_model_and_the_plain_one_take_what_the_other_left(tmp_path: Path, merge: bool) -> None:
    expected = outputs(trained(tmp_path / "checkpoint", "oialr"))
    compiled: Any = torch.compile(network(), backend="eager")
    trainers.load_trained(compiled, tmp_path / "checkpoint", merge=merge)
    trainers.save_model(compiled, tmp_path / "model.safetensors")
    again = trainers.load_model(network(), tmp_path / "model.safetensors", merge=merge)
    for loaded in (compiled, again):
        assert torch.allclose(outputs(loaded), expected, atol=1e-4)


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        trainers.load_trained(network(), tmp_path)
    calls = iter(range(100))
    with pytest.raises(trainers.Interrupted):
        trained(tmp_path / "cut", "ddp", interrupt=lambda: next(calls) == 3)
    with pytest.raises(ValueError, match="not over"):
        trainers.load_trained(network(), tmp_path / "cut")
    trained(tmp_path / "whole", "oialr")
    before = {name: tensor.clone() for name, tensor in network("vgg").state_dict().items()}
    other = network("vgg")
    with pytest.raises(ValueError, match=str(tmp_path / "whole")):
        trainers.load_trained(other, tmp_path / "whole")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())

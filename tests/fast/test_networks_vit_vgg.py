from __future__ import annotations

import pytest
import torch
from torch import nn

from search_spaces.networks.vgg import VGG16, cifar_vgg16
from search_spaces.networks.vit import DropPath, ViT
from trainers.lowrank.layers import matrix_weights


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_published_parameter_counts() -> None:
    with torch.device("meta"):
        assert count(ViT()) == 86_567_656
        assert count(ViT()) - count(ViT(qkv_bias=False)) == 12 * 3 * 768
        assert count(VGG16()) == 138_357_544
        assert count(cifar_vgg16()) == 14_728_266


def small(**changed: object) -> ViT:
    given = {"side": 32, "patch": 8, "classes": 5, "dim": 48, "depth": 3, "heads": 6, **changed}
    return ViT(**given)  # type: ignore[arg-type]


def test_a_block_is_attention_and_mlp_each_added_after_its_norm() -> None:
    torch.manual_seed(0)
    block = small(depth=1, qkv_bias=False).blocks[0].eval()
    x = torch.randn(2, 17, 48)
    weight, heads = block.attention.in_proj_weight, 6
    normed = nn.functional.layer_norm(x, (48,), block.norm1.weight, block.norm1.bias, eps=1e-6)
    q, k, v = (normed @ w.T for w in weight.chunk(3))
    q, k, v = (t.view(2, 17, heads, 8).transpose(1, 2) for t in (q, k, v))
    mixed = ((q @ k.transpose(-1, -2)) / 8**0.5).softmax(-1) @ v
    x1 = x + block.attention.out_proj(mixed.transpose(1, 2).reshape(2, 17, 48))
    normed = nn.functional.layer_norm(x1, (48,), block.norm2.weight, block.norm2.bias, eps=1e-6)
    hidden = nn.functional.gelu(block.mlp[0](normed))
    assert torch.allclose(block(x), x1 + block.mlp[3](hidden), atol=1e-5)


def test_each_patch_is_a_token_and_positions_matter() -> None:
    torch.manual_seed(0)
    network = small().eval()
    seen = []
    network.blocks.register_forward_hook(lambda m, i, o: seen.append(i[0]))
    images = torch.zeros(1, 3, 32, 32)
    network(images)
    # The second row's third patch: token 1 + 4 + 2.
    images[0, 1, 9, 20] = 1.0
    network(images)
    changed = (seen[1] - seen[0]).abs().sum(-1)[0].nonzero().flatten()
    assert changed.tolist() == [7]
    assert seen[0][0, 1:].std(0).min() > 0


def test_drop_path_keeps_the_mean_and_whole_samples() -> None:
    torch.manual_seed(0)
    layer = DropPath(0.25)
    x = torch.ones(4000, 3, 2)
    dropped = layer(x)
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert (dropped.flatten(1).std(1) == 0).all()
    assert abs(dropped.mean() - 1) < 0.03
    assert torch.equal(layer.eval()(x), x)
    rates = [block.drop_path.rate for block in small(drop_path=0.2).blocks]
    assert rates == [0.0, pytest.approx(0.1), pytest.approx(0.2)]


def test_the_methods_find_all_matrices_of_blocks() -> None:
    found = {weight.layer for weight in matrix_weights(small(), last=False)}
    of_blocks = [
        f"blocks.{i}.{name}"
        for i in range(3)
        for name in ("attention.in_proj", "attention.out_proj", "mlp.0", "mlp.3")
    ]
    assert found == {"patches", *of_blocks}
    assert len(list(matrix_weights(cifar_vgg16(width=16), last=False))) == 13


def test_images_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="patch = 7: images of 32×32"):
        small(patch=7)
    with pytest.raises(ValueError, match="heads = 5: must divide dim = 48"):
        small(heads=5)

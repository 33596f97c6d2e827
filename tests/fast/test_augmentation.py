from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import combinations
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import trainers
from search_spaces.building_blocks.data_sets import augmentation as augment
from search_spaces.building_blocks.data_sets.augmentation import (
    AUGMENTATIONS,
    Augmentation,
    Augmented,
    RandAugment,
)
from search_spaces.building_blocks.data_sets.image_parts import Images

FILL = torch.tensor([120, 110, 100], dtype=torch.uint8).view(3, 1, 1)


def pixels_of(seed: int) -> Tensor:
    """Smooth colours with some noise, so that interpolation and filters have something to do."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(1, 3, 5, 5, generator=generator) * 230
    smooth = torch.nn.functional.interpolate(small, size=(32, 32), mode="bilinear")[0]
    return (smooth + 25 * torch.rand(3, 32, 32, generator=generator)).to(torch.uint8)


def picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def as_pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    fill = tuple(FILL.flatten().tolist())
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=fill
    )


def table(image: Image.Image, add: int) -> Image.Image:
    return image.point([min(255, i + add) if i < 128 else i for i in range(256)] * 3)


def posterized(image: Image.Image, bits: int) -> Image.Image:
    # No bits at all, black, newer versions of Pillow refuse.
    return ImageOps.posterize(image, bits) if bits else image.point([0] * 768)


# timm's definitions, in Pillow's operations; v is a level from 0 to 1, s a sign.
ORACLES: dict[str, tuple[Any, int]] = {
    "auto_contrast": (lambda i, v, s: ImageOps.autocontrast(i), 1),
    "equalize": (lambda i, v, s: ImageOps.equalize(i), 0),
    "invert": (lambda i, v, s: ImageOps.invert(i), 0),
    "rotate": (
        lambda i, v, s: i.rotate(
            s * v * 30, resample=Image.Resampling.BILINEAR, fillcolor=tuple(FILL.flatten().tolist())
        ),
        1,
    ),
    "posterize": (lambda i, v, s: posterized(i, 4 - int(v * 4)), 0),
    "solarize": (lambda i, v, s: ImageOps.solarize(i, 256 - int(v * 256)), 0),
    "solarize_add": (lambda i, v, s: table(i, int(v * 110)), 0),
    "color": (lambda i, v, s: ImageEnhance.Color(i).enhance(max(0.1, 1 + s * v * 0.9)), 1),
    "contrast": (lambda i, v, s: ImageEnhance.Contrast(i).enhance(max(0.1, 1 + s * v * 0.9)), 1),
    "brightness": (lambda i, v, s: ImageEnhance.Brightness(i).enhance(max(0.1, 1 + s * v * 0.9)), 1),
    "sharpness": (lambda i, v, s: ImageEnhance.Sharpness(i).enhance(max(0.1, 1 + s * v * 0.9)), 1),
    "shear_x": (lambda i, v, s: affine(i, 1, s * v * 0.3, 0, 0, 1, 0), 1),
    "shear_y": (lambda i, v, s: affine(i, 1, 0, 0, s * v * 0.3, 1, 0), 1),
    "translate_x": (lambda i, v, s: affine(i, 1, 0, s * v * 0.45 * 32, 0, 1, 0), 1),
    "translate_y": (lambda i, v, s: affine(i, 1, 0, 0, 0, 1, s * v * 0.45 * 32), 1),
}


def test_all_fifteen_operations_are_compared() -> None:
    assert [operation.__name__ for operation in augment._OPERATIONS] == list(ORACLES)


@pytest.mark.parametrize(
    ("name", "level", "sign"), combinations(ORACLES, [0.07, 0.5, 0.93, 1.0], [1.0, -1.0])
)
def test_operations_are_those_of_pillow(name: str, level: float, sign: float) -> None:
    oracle, tolerance = ORACLES[name]
    for seed in range(3):
        pixels = pixels_of(seed)
        found = getattr(augment, name)(pixels, level, sign, FILL)
        expected = as_pixels(oracle(picture(pixels), level, sign))
        assert found.dtype == torch.uint8
        apart = (found.int() - expected.int()).abs()
        # On the border between image and fill a rounding decides.
        assert (apart > tolerance).float().mean() <= (0.005 if tolerance else 0.0), apart.max()


@pytest.mark.parametrize("name", ORACLES)
def test_one_colour_does_no_harm(name: str) -> None:
    pixels = torch.full((3, 32, 32), 200, dtype=torch.uint8)
    found = getattr(augment, name)(pixels, 0.9, 1.0, FILL)
    expected = as_pixels(ORACLES[name][0](picture(pixels), 0.9, 1.0))
    assert (found.int() - expected.int()).abs().max() <= 1


def test_rand_augment_chooses_two_and_skips_half(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    def watched(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
        seen.append((level, sign))
        return pixels

    monkeypatch.setattr(augment, "_OPERATIONS", (watched,) * 15)
    draw = random.Random(0)
    for _ in range(5000):
        RandAugment()(torch.zeros(3, 4, 4, dtype=torch.uint8), draw, FILL)
    levels, signs = torch.tensor(seen).T
    assert abs(len(seen) - 5000) < 250
    assert abs(levels.mean() - 0.9) < 0.005
    # Normal around 9 with deviation 0.5, cut off at 10.
    assert abs(levels.std() - 0.049) < 0.003
    assert levels.max() == 1.0
    assert abs(signs.mean()) < 0.05


def test_padded_crops_are_all_windows_of_the_padded_image() -> None:
    pixels = pixels_of(0)
    padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
    padded[:, 4:36, 4:36] = pixels
    windows = {
        padded[:, top : top + 32, left : left + 32].numpy().tobytes() for top in range(9) for left in range(9)
    }
    draw = random.Random(0)
    found = {augment.padded_crop(pixels, 4, draw).contiguous().numpy().tobytes() for _ in range(1500)}
    assert found == windows


def test_resized_crops_have_the_areas_asked_for() -> None:
    # A ramp in x, so that what is seen tells the window's width.
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(3, 32, 32)
    draw = random.Random(0)
    widths = [
        (augment.resized_crop(ramp, (0.8, 1.0), draw)[0, 0, [0, -1]].int().diff() / 8 + 1).item()
        for _ in range(300)
    ]
    # 0.8 of the area, 3 : 4 as high as wide and the reverse, at the ends.
    assert min(widths) > 24
    assert max(widths) <= 32
    assert max(widths) - min(widths) > 4


def test_erasing_is_noise_in_a_rectangle_of_the_stated_sizes() -> None:
    draw, sizes = random.Random(0), []
    for _ in range(300):
        image = torch.full((3, 32, 32), 50.0)
        augment.erase(image, draw)
        changed = (image != 50).all(0)
        rows, columns = changed.any(1).sum().item(), changed.any(0).sum().item()
        assert changed.sum() == rows * columns
        sizes.append(rows * columns / 1024)
        assert image[:, changed].abs().max() < 6
    assert 0.01 < min(sizes) < 0.05
    assert 0.3 < max(sizes) < 0.36


def augmented(name: str | Augmentation, seed: int = 0) -> Augmented:
    images = Images(pixels=torch.stack([pixels_of(i) for i in range(8)]), classes=torch.arange(8))
    how = AUGMENTATIONS[name] if isinstance(name, str) else name
    mean, deviation = torch.full((3, 1, 1), 120.0), torch.full((3, 1, 1), 60.0)
    return Augmented(images, mean=mean, deviation=deviation, augmentation=how, seed=seed)


@pytest.mark.parametrize("name", ["crop-flip", "rand-augment"])
def test_images_depend_on_seed_epoch_and_sample_alone(name: str) -> None:
    one, other = augmented(name), augmented(name)
    one.set_epoch(3)
    other.set_epoch(3)
    backwards = [other[i][0] for i in reversed(range(8))]
    random.seed(5)
    torch.manual_seed(5)
    forwards = [one[i][0] for i in range(8)]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    other.set_epoch(4)
    assert sum(not torch.equal(a, other[i][0]) for i, a in enumerate(forwards)) > 4
    third = augmented(name, seed=1)
    third.set_epoch(3)
    assert sum(not torch.equal(a, third[i][0]) for i, a in enumerate(forwards)) > 4


def test_the_images_that_are_kept_stay_as_they_are() -> None:
    data = augmented("rand-augment")
    before = data._images.pixels.clone()
    for epoch in range(30):
        data.set_epoch(epoch)
        for i in range(8):
            image, _ = data[i]
            assert image.shape == (3, 32, 32)
            assert image.isfinite().all()
    assert torch.equal(data._images.pixels, before)


def trained(directory: Any, *, processes: int = 0, stop_after: int | None = None) -> Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 8))
    calls = iter(range(10**6))
    trainers.train(
        model,
        augmented("rand-augment"),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        epochs=3,
        batch_size=2,
        checkpoint=directory,
        interrupt=lambda: next(calls) == stop_after,
        loader_processes=processes,
    )
    return model[1].weight.detach()


def test_a_run_goes_on_with_the_images_that_it_would_have_seen(tmp_path: Path) -> None:
    expected = trained(None)
    with pytest.raises(trainers.Interrupted):
        trained(tmp_path, stop_after=6)
    assert torch.equal(trained(tmp_path), expected)
    assert torch.equal(trained(None, processes=1), expected)

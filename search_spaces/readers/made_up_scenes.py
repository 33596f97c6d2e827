"""Made-up street scenes in Cityscapes' form, whose classes can be learnt from colour, texture and place. Imports no
torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from search_spaces.readers.cityscapes import CLASSES, FINE_SUFFIX, IDS, IMAGE_SUFFIX
from search_spaces.readers.files import made_directory

HEIGHT, WIDTH = 64, 128
CITIES = {"train": 8, "val": 3}
"""Number of cities of each part."""
SCENES = 16

_EGO_VEHICLE, _EGO_ROWS = 1, 4
_COLOURS = {
    "sky": (150, 180, 220), "building": (130, 120, 110), "vegetation": (80, 120, 70), "road": (110, 100, 110),
    "sidewalk": (150, 140, 145), "car": (90, 90, 130), "person": (140, 90, 80), "pole": (120, 125, 115),
    "traffic sign": (190, 180, 70),
}  # fmt: skip


def write_made_up(path: str | Path, *, scenes: int = SCENES, seed: int = 0) -> None:
    """Write training and validation scenes with fine annotations.

    Args:
        path (path): folder of the data set.
        scenes (int; default 16): number of scenes of a city.
        seed (int; default 0): seed of the scenes.
    """
    for part, cities in CITIES.items():
        for city in range(cities):
            name = f"{part}town{city}"
            images = made_directory(Path(path) / "leftImg8bit" / part / name)
            masks = made_directory(Path(path) / "gtFine" / part / name)
            rng = np.random.default_rng((seed, part == "val", city))
            # A city has its own light, so that scenes of another are not the same.
            light = rng.normal(0, 12, 3)
            for scene in range(scenes):
                ids, pixels = _scene(rng, light)
                stem = f"{name}_{scene:06d}_000019"
                Image.fromarray(pixels).save(images / (stem + IMAGE_SUFFIX))
                Image.fromarray(ids).save(masks / (stem + FINE_SUFFIX))


def _scene(
    rng: np.random.Generator, light: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Ids (H, W) and pixels (H, W, 3) of a scene."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    names = np.full((HEIGHT, WIDTH), "sky", dtype=object)
    horizon = int(rng.integers(24, 34))
    left = 0
    while left < WIDTH:
        right, top = left + int(rng.integers(12, 32)), int(rng.integers(4, horizon))
        kind = "building" if rng.random() < 0.6 else "vegetation"
        # Crowns of trees are round.
        roof = top + (0 if kind == "building" else ((x - (left + right) / 2) / 5) ** 2)
        names[(x >= left) & (x < right) & (y >= roof) & (y < horizon)] = kind
        left = right
    middle, slope = rng.uniform(0.35, 0.65) * WIDTH, rng.uniform(0.8, 1.6)
    names[y >= horizon] = "sidewalk"
    names[(y >= horizon) & (np.abs(x - middle) <= 6 + slope * (y - horizon))] = "road"
    for kind, count, height, width in (
        ("pole", 3, 26, 2), ("car", 3, 9, 16), ("person", 4, 13, 4)
    ):  # fmt: skip
        for _ in range(int(rng.integers(1, count + 1))):
            # Near objects are larger, and stand lower.
            foot = int(rng.integers(horizon + 3, HEIGHT - _EGO_ROWS - 2))
            scale = 0.5 + (foot - horizon) / (HEIGHT - horizon)
            at, tall, wide = int(rng.integers(0, WIDTH)), height * scale, max(1.0, width * scale / 2)
            names[(np.abs(x - at) <= wide) & (y <= foot) & (y > foot - tall)] = kind
            if kind == "pole":
                names[(np.abs(x - at) <= 3 * scale) & (np.abs(y - foot + tall) <= 3 * scale)] = "traffic sign"
    ids, pixels = np.zeros((HEIGHT, WIDTH), np.uint8), rng.normal(0, 14, (HEIGHT, WIDTH, 3)) + light
    for kind, colour in _COLOURS.items():
        here = names == kind
        ids[here] = IDS[CLASSES.index(kind)]
        pixels[here] += np.array(colour) + rng.normal(0, 14, 3)
    ids[-_EGO_ROWS:] = _EGO_VEHICLE
    pixels[-_EGO_ROWS:] = 60
    return ids, pixels.clip(0, 255).astype(np.uint8)

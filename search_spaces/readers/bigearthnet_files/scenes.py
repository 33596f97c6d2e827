"""Pixels of a made-up BigEarthNet that its classes can be learnt from, though not from any one of them.

A patch is parted into regions of one to four classes. Two classes each share a spectrum and differ in their
texture alone, stripes or spots of the patch's own direction and phase; light, noise and haze differ from patch to
patch. So neither a pixel nor a patch's mean gives all classes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    CLASSES,
    MEAN_AND_DEVIATION,
    SIDE,
    SIDES,
    Pixels,
)

Field = npt.NDArray[np.float32]


@lru_cache(maxsize=1)
def _spectra() -> Field:
    """(spectra, bands): the mean of each band times a factor that changes smoothly from band to band."""
    generator = np.random.default_rng(19)
    walks = generator.normal(0.0, 0.3, ((len(CLASSES) + 1) // 2, len(BANDS))).cumsum(axis=1)
    means = np.array([MEAN_AND_DEVIATION["v2"][band][0] for band in BANDS])
    factors = np.exp(walks - walks.mean(axis=1, keepdims=True))
    spectra: Field = (means * factors).astype(np.float32)
    return spectra


@lru_cache(maxsize=1)
def _smoothing() -> Field:
    """(SIDE, 6): linear interpolation from six points along a side."""
    at = np.linspace(0, 5, SIDE)[:, None]
    weights: Field = np.maximum(0.0, 1.0 - np.abs(at - np.arange(6))).astype(np.float32)
    return weights


def made_up_patch(number: int, *, seed: int, veiled: bool) -> tuple[tuple[int, ...], dict[str, Pixels]]:
    """Classes and pixels by band of a patch, (side, side) each; ``veiled``: under snow or clouds."""
    generator = np.random.default_rng((seed, 1, number))
    count = generator.choice([1, 2, 3, 4], p=[0.2, 0.35, 0.3, 0.15])
    # Some classes are rarer than others, as they are in the real one.
    weights = 1.0 / (4.0 + np.arange(len(CLASSES)))
    classes = np.sort(generator.choice(len(CLASSES), count, replace=False, p=weights / weights.sum()))
    region = _regions(generator, count)
    stripes, spots = _textures(generator)
    texture = np.where((classes % 2 == 0)[region], stripes, spots)
    scene = _spectra()[classes // 2][region].transpose(2, 0, 1) * (1.0 + 0.3 * texture)
    scene *= generator.lognormal(0.0, 0.15)
    if veiled:
        smooth = _smoothing()
        cover = smooth @ generator.normal(2.0, 1.0, (6, 6)).astype(np.float32) @ smooth.T
        scene = scene + 3000.0 * np.clip(cover, 0.0, None)
    bands = {}
    for values, band in zip(scene, BANDS, strict=True):
        side = SIDES[band]
        block = SIDE // side
        native = values.reshape(side, block, side, block).mean(axis=(1, 3))
        native = native * (1.0 + 0.15 * generator.standard_normal((side, side), dtype=np.float32))
        bands[band] = np.clip(native + generator.normal(0.0, 40.0), 1, 20_000).astype(np.uint16)
    return tuple(classes.tolist()), bands


def _regions(generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """(SIDE, SIDE): which of ``count`` regions each pixel is in; each has a twelfth of them or more."""
    smooth = _smoothing()
    fields = smooth @ generator.standard_normal((count, 6, 6), dtype=np.float32) @ smooth.T
    while True:
        region: npt.NDArray[np.int64] = fields.argmax(axis=0)
        small = np.bincount(region.ravel(), minlength=count) < SIDE**2 // 12
        if not small.any():
            return region
        fields[small] += 0.1


def _textures(generator: np.random.Generator) -> tuple[Field, Field]:
    """Stripes and spots, from -1 to 1, both with waves of 10 to 14 pixels of 10 m."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    angle, wave = generator.uniform(0, np.pi), 2 * np.pi / generator.uniform(10, 14)
    phases = generator.uniform(0, 2 * np.pi, 2)
    along = wave * (np.cos(angle) * x + np.sin(angle) * y) + phases[0]
    across = wave * (np.cos(angle) * y - np.sin(angle) * x) + phases[1]
    return np.sin(along).astype(np.float32), (np.sin(along) * np.sin(across) * 1.4).astype(np.float32)

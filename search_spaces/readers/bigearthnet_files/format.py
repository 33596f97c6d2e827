"""Bands, classes and statistics of BigEarthNet's versions. Imports numpy only.

Sumbul et al. 2019 and 2021 (v1, 43 and 19 classes), Clasen et al. 2024 (v2, or reBEN).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

Version = Literal["v1", "v2"]
Split = Literal["train", "validation", "test"]
VERSIONS: tuple[Version, ...] = ("v1", "v2")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
EXTRA = "Run: bash jobs/setup.sh bigearthnet"
"""Remedy for a missing package of these readers."""

PARQUETS = ("metadata.parquet", "metadata_for_patches_with_snow_cloud_or_shadow.parquet")
"""Tables of v2: its patches, and the patches that are not for training."""

Pixels = npt.NDArray[np.uint16]

SIDE = 120
"""Pixels along a patch's side in its finest bands, of 10 m."""

SIDES: Mapping[str, int] = MappingProxyType(
    {
        "B01": 20,
        "B02": 120,
        "B03": 120,
        "B04": 120,
        "B05": 60,
        "B06": 60,
        "B07": 60,
        "B08": 120,
        "B8A": 60,
        "B09": 20,
        "B11": 60,
        "B12": 60,
    }
)
"""Pixels along a side of each band's file. Sentinel-2's B10 sees the air only and is in no patch."""

BANDS: tuple[str, ...] = tuple(SIDES)

MEAN_AND_DEVIATION: Mapping[Version, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "v1": {
            "B01": (340.8, 554.8),
            "B02": (429.9, 572.4),
            "B03": (614.2, 582.9),
            "B04": (590.2, 675.9),
            "B05": (950.7, 729.9),
            "B06": (1792.5, 1096.0),
            "B07": (2075.5, 1273.5),
            "B08": (2218.9, 1365.5),
            "B8A": (2266.5, 1356.1),
            "B09": (2246.1, 1302.3),
            "B11": (1594.4, 1079.2),
            "B12": (1009.3, 818.9),
        },
        "v2": {
            "B01": (361.1, 575.1),
            "B02": (438.4, 607.0),
            "B03": (614.1, 603.3),
            "B04": (588.4, 684.6),
            "B05": (942.8, 738.4),
            "B06": (1769.9, 1100.5),
            "B07": (2049.6, 1275.8),
            "B08": (2193.3, 1369.4),
            "B8A": (2235.6, 1356.5),
            "B09": (2241.5, 1316.4),
            "B11": (1568.2, 1070.2),
            "B12": (997.7, 813.5),
        },
    }
)
"""Mean and standard deviation of each band over the training part, after nearest-neighbour upsampling."""

CLASSES: tuple[str, ...] = (
    "Agro-forestry areas",
    "Arable land",
    "Beaches, dunes, sands",
    "Broad-leaved forest",
    "Coastal wetlands",
    "Complex cultivation patterns",
    "Coniferous forest",
    "Industrial or commercial units",
    "Inland waters",
    "Inland wetlands",
    "Land principally occupied by agriculture, with significant areas of natural vegetation",
    "Marine waters",
    "Mixed forest",
    "Moors, heathland and sclerophyllous vegetation",
    "Natural grassland and sparsely vegetated areas",
    "Pastures",
    "Permanent crops",
    "Transitional woodland, shrub",
    "Urban fabric",
)
"""The 19 classes, in the order of a target's columns."""

_RENAMED: dict[str, str | None] = {
    "Continuous urban fabric": "Urban fabric",
    "Discontinuous urban fabric": "Urban fabric",
    "Road and rail networks and associated land": None,
    "Port areas": None,
    "Airports": None,
    "Mineral extraction sites": None,
    "Dump sites": None,
    "Construction sites": None,
    "Green urban areas": None,
    "Sport and leisure facilities": None,
    "Non-irrigated arable land": "Arable land",
    "Permanently irrigated land": "Arable land",
    "Rice fields": "Arable land",
    "Vineyards": "Permanent crops",
    "Fruit trees and berry plantations": "Permanent crops",
    "Olive groves": "Permanent crops",
    "Annual crops associated with permanent crops": "Permanent crops",
    "Natural grassland": "Natural grassland and sparsely vegetated areas",
    "Sparsely vegetated areas": "Natural grassland and sparsely vegetated areas",
    "Moors and heathland": "Moors, heathland and sclerophyllous vegetation",
    "Sclerophyllous vegetation": "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland/shrub": "Transitional woodland, shrub",
    "Bare rock": None,
    "Burnt areas": None,
    "Inland marshes": "Inland wetlands",
    "Peatbogs": "Inland wetlands",
    "Salt marshes": "Coastal wetlands",
    "Salines": "Coastal wetlands",
    "Intertidal flats": None,
    "Water courses": "Inland waters",
    "Water bodies": "Inland waters",
    "Coastal lagoons": "Marine waters",
    "Estuaries": "Marine waters",
    "Sea and ocean": "Marine waters",
}

CLASS_OF_43: Mapping[str, str | None] = MappingProxyType(
    {**{name: name for name in CLASSES if name not in _RENAMED.values()}, **_RENAMED}
)
"""Class among the 19 for each of CORINE's 43 classes, which v1's files name; None: no longer used."""


class PatchError(ValueError):
    """A patch cannot be read; the text names the patch, the file and what is wrong with it."""

    def __init__(self, patch: str, reason: str) -> None:
        super().__init__(patch, reason)
        self.patch = patch
        self.reason = reason

    def __str__(self) -> str:
        return f"Patch {self.patch}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Content of a patch's files."""

    bands: Mapping[str, Pixels]
    """Pixels (side, side) by band."""
    classes: tuple[int, ...]
    """Positions in ``CLASSES``."""


def class_numbers(patch: str, labels: Iterable[object], version: Version) -> tuple[int, ...]:
    """Ascending positions of the labels in ``CLASSES``; v1's 43 classes are converted.

    Raises:
        PatchError: the version has no such label.
    """
    class_of: Mapping[str, str | None] = CLASS_OF_43 if version == "v1" else {name: name for name in CLASSES}
    numbers = set()
    for label in labels:
        if not isinstance(label, str) or label not in class_of:
            raise PatchError(patch, f"label {label!r} is none of the {len(class_of)} classes of {version}.")
        name = class_of[label]
        if name is not None:
            numbers.add(CLASSES.index(name))
    return tuple(sorted(numbers))


def checked_bands(bands: Sequence[str] | None) -> tuple[str, ...]:
    """``bands`` as a tuple, all twelve for None; ValueError for an unknown or repeated band, or no band."""
    if bands is None:
        return BANDS
    unknown = [band for band in bands if band not in SIDES]
    if unknown or not bands or len(set(bands)) != len(bands):
        raise ValueError(
            f"bands = {', '.join(bands) or 'none'}: must be different bands among {', '.join(BANDS)}. Correct them."
        )
    return tuple(bands)


def check_band(patch: str, band: str, pixels: npt.NDArray[np.generic]) -> Pixels:
    """``pixels``; PatchError if their type or size is not that of the band."""
    if pixels.dtype != np.uint16:
        raise PatchError(patch, f"{band} holds {pixels.dtype}, not uint16.")
    check_side(patch, band, pixels.shape)
    return np.asarray(pixels, dtype=np.uint16)


def check_side(patch: str, band: str, shape: tuple[int, ...]) -> None:
    """PatchError for pixels of another shape than the band's."""
    side = SIDES[band]
    if shape != (side, side):
        raise PatchError(patch, f"{band} is {'×'.join(map(str, shape))} pixels, not {side}×{side}.")

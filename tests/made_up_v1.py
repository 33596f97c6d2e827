"""A made-up archive of BigEarthNet v1 from one of v2: the same patches under other names, with the lists of v1."""

import json
import shutil
from pathlib import Path

import numpy as np
import rasterio
from pyarrow import parquet

from search_spaces.readers.bigearthnet_files.format import CLASS_OF_43, CLASSES, PARQUETS
from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER

_NAMES_OF_43 = {name: [old for old, new in CLASS_OF_43.items() if new == name] for name in [*CLASSES, None]}
_CLASSLESS = "S2A_MSIL2A_20170613T101031_99_99"


def write(v2: Path, root: Path) -> None:
    """Write ``root`` from the archive ``v2``, with a further patch in no list, which has none of the 19 classes."""
    root.mkdir()
    random = np.random.default_rng(0)
    rows = [row for name in PARQUETS for row in parquet.read_table(v2 / name).to_pylist()]
    lists: dict[str, list[str]] = {"train": [], "validation": [], "test": [], "snow": [], "clouds": []}
    for row in rows:
        snow, clouds = row["contains_seasonal_snow"], row["contains_cloud_or_shadow"]
        lists["snow" if snow else "clouds" if clouds else row["split"]].append(row["s2v1_name"])
        _copy(_folder(v2, row["patch_id"]), root / row["s2v1_name"], row["labels"], random)
    _copy(_folder(v2, rows[0]["patch_id"]), root / _CLASSLESS, [], random)
    files = ("train", "val", "test", "patches_with_seasonal_snow", "patches_with_cloud_and_shadow")
    for file, names in zip(files, lists.values(), strict=True):
        (root / f"{file}.csv").write_text("".join(f"{name}\n" for name in names))


def _folder(v2: Path, patch: str) -> Path:
    return v2 / V2_FOLDER / patch.rsplit("_", 2)[0] / patch


def _copy(source: Path, target: Path, labels: list[str], random: np.random.Generator) -> None:
    target.mkdir()
    for path in source.iterdir():
        shutil.copy(path, target / path.name.replace(source.name, target.name))
    of_43 = [str(random.choice(_NAMES_OF_43[label])) for label in labels]
    if not labels or random.random() < 0.1:  # a class that is not among the 19
        of_43.append(str(random.choice(_NAMES_OF_43[None])))
    with rasterio.open(next(target.glob("*_B02.tif"))) as file:
        left, bottom, right, top = map(round, file.bounds)
        projection = file.crs.to_wkt()
    content = {
        "labels": of_43,
        "coordinates": {"ulx": left, "uly": top, "lrx": right, "lry": bottom},
        "projection": projection,
        "tile_source": f"{target.name.rsplit('_', 2)[0]}.SAFE",
        "acquisition_date": "2017-06-13 10:10:31",
    }
    (target / f"{target.name}_labels_metadata.json").write_text(json.dumps(content))

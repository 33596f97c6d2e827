"""BigEarthNet for training: two .npy files, made once from the archive, from which patches are read.

python -m search_spaces.readers.bigearthnet ARCHIVE OUT     # made once: from v1, v2 or its LMDB; resumable
python -m search_spaces.readers.bigearthnet --verify OUT    # every patch against its checksum
python -m search_spaces.readers.bigearthnet ARCHIVE OUT --repair    # and what is damaged is read again

train = load_bigearthnet(OUT, "train", bands=["B04", "B03", "B02"])
train.read([0, 1, 2])                                       # uint16 (3, values): bands in their own resolutions

``search_spaces.building_blocks.data_sets.patch_images`` makes images of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from search_spaces.readers.bigearthnet_files.dataset import BigEarthNet
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES, SPLITS, checked_bands
from search_spaces.readers.bigearthnet_files.store import Store

__all__ = ["BANDS", "CLASSES", "load_bigearthnet"]


def load_bigearthnet(
    path: str | Path,
    split: str,
    *,
    bands: Sequence[str] | None = None,
    patches: int | None = None,
) -> BigEarthNet:
    """Split of the data set that ``python -m search_spaces.readers.bigearthnet ARCHIVE path`` made.

    Several processes may open the same path.

    Args:
        path (path): directory of the data set.
        split (str): "train", "validation" or "test".
        bands (sequence of str; default None): bands to read; None: all that were stored.
        patches (int; default None): number of patches, drawn from the whole split and always the same; None: all.

    Raises:
        FileNotFoundError: there is no data set at ``path``.
        ValueError: a value is not allowed, or the files are incomplete.
    """
    known = next((one for one in SPLITS if one == split), None)
    if known is None:
        raise ValueError(f"split = {split!r}: must be {', '.join(SPLITS)}. Correct it.")
    store = Store(path)
    chosen = store.layout.bands if bands is None else checked_bands(bands)
    lacking = set(chosen) - set(store.layout.bands)
    if lacking:
        raise ValueError(
            f"{path} holds the bands {', '.join(store.layout.bands)}, not {', '.join(sorted(lacking))}. Ask for "
            "those, or make it again with all that you need."
        )
    rows = store.rows(known)
    if patches is not None:
        if not 1 <= patches <= len(rows):
            raise ValueError(f"patches = {patches}: {path} has {len(rows)} for {split}. Name fewer, or none.")
        # A constant seed, so that all runs use the same patches; sorted, as reading in the file's order is faster.
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:patches])
    return BigEarthNet(store, rows, chosen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 for wrong or damaged data, 2 for wrong arguments."""
    # Imported here, because training, which reads the data set, needs none of it.
    from search_spaces.readers.bigearthnet_files.convert import ON_ERROR, convert, verify

    parser = argparse.ArgumentParser(
        prog="python -m search_spaces.readers.bigearthnet",
        description="Make the files that training reads from an archive of BigEarthNet: v1 or v2 in GeoTIFFs, or "
        "v2's LMDB by rico-hdl. Whatever stops it, the same command goes on.",
        epilog="example: python -m search_spaces.readers.bigearthnet /data/BigEarthNet-v1.0 /data/ben --lists "
        "/data/splits",
    )
    parser.add_argument("archive", nargs="?", metavar="ARCHIVE", help="the directory with the patches")
    parser.add_argument("out", metavar="OUT", help="the directory to make; 160 kB a patch of twelve bands")
    parser.add_argument("--verify", action="store_true", help="read OUT again and compare with its checksums")
    parser.add_argument(
        "--repair", action="store_true", help="verify what OUT holds first, and read again what is damaged"
    )
    parser.add_argument(
        "--lists",
        metavar="DIR",
        help="where the split lists or parquet files are, if not in or beside ARCHIVE",
    )
    parser.add_argument("--bands", metavar="B02,B03,…", help="which to keep (default: all twelve)")
    parser.add_argument(
        "--patches", type=int, metavar="N", help="how many, drawn from all splits (default: all)"
    )
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="refuse",
        help="at a patch that cannot be read, end, or name it and go on (default: refuse)",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="that read (default: one a core)")
    given = parser.parse_args(arguments)
    if (given.archive is None) is not given.verify:
        parser.error("name ARCHIVE and OUT, or --verify and OUT alone.")
    if given.verify and given.repair:
        parser.error("--verify only looks. Name ARCHIVE and OUT with --repair.")
    if given.processes is not None and given.processes < 1:
        parser.error(f"--processes {given.processes}: must be 1 or more.")
    try:
        if given.verify:
            damaged = verify(given.out)
            for name in damaged:
                print(f"Patch {name}: its pixels or labels are not what was stored.")
            remedy = (
                f"Read them again: python -m search_spaces.readers.bigearthnet ARCHIVE {given.out} --repair"
            )
            print(
                f"{given.out}: {f'{len(damaged)} damaged. {remedy}' if damaged else 'every patch is whole'}"
            )
            return 1 if damaged else 0
        summary = convert(
            given.archive,
            given.out,
            lists=given.lists,
            bands=given.bands.split(",") if given.bands else None,
            patches=given.patches,
            on_error=given.on_error,
            repair=given.repair,
            processes=given.processes,
        )
        print(summary)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; the same command goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

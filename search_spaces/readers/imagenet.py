"""ImageNet-2012, and other images in its forms: a folder for each class, or tar files in webdataset's form.

    python -m search_spaces.readers.imagenet check data/imagenet              what is there, and is it whole?
    python -m search_spaces.readers.imagenet make-up data/made-up --shards    made-up images in the same form

A folder DATA holds one of:

- ``train/CLASS/*.JPEG`` (or .jpg, .jpeg, .png, in any case), one folder for each class, and the validation part in
  ``val/CLASS/`` or ``validation/CLASS/``. Classes are numbered in the order of their names, as everywhere.
- The same, with all images to validate with in ``val/`` itself, and one list that says what they are, in DATA or
  ``val/``: Kaggle's ``LOC_val_solution.csv``; ``val.txt``, a line ``IMAGE CLASS`` for each; or the devkit's
  ``ILSVRC2012_validation_ground_truth.txt`` with its ``meta.mat``, also in ``DATA/ILSVRC2012_devkit_t12/data/``.
- Shards: ``train/*.tar`` and ``val/*.tar`` (or ``validation/*.tar``), or ``*train*.tar`` and ``*val*.tar`` in DATA
  itself, uncompressed, in which ``KEY.jpg`` (.jpeg, .png) and ``KEY.cls``, the number of its class, lie beside each
  other; whatever else has a KEY is not read.

Both forms of the same images train alike, as long as keys are the names of the files: images are sorted by class and
name. Importing this module imports no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from search_spaces.readers.imagenet_files.listing import ImageFiles, Listing, list_images
from search_spaces.readers.imagenet_files.made_up import write_made_up
from search_spaces.readers.published import IMAGENET_LISTS

__all__ = ["ImageFiles", "Listing", "list_images", "write_made_up"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``check`` or ``make-up``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m search_spaces.readers.imagenet",
        # The text of this module, whose lists argparse would otherwise fill into a paragraph.
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="list the images of a folder, and say what it holds")
    check.add_argument("data", type=Path, help="the folder")
    check.add_argument(
        "--list",
        default=IMAGENET_LISTS,
        metavar="DIR",
        help=f"where the list is kept (default {IMAGENET_LISTS})",
    )
    make = commands.add_parser("make-up", help="write made-up images, of classes that can be learnt")
    make.add_argument("data", type=Path, help="the folder to make")
    make.add_argument(
        "--shards", action="store_true", help="as tar files, and not as a folder for each class"
    )
    given = parser.parse_args(arguments)
    try:
        if given.command == "make-up":
            write_made_up(given.data, form="shards" if given.shards else "folders")
            print(f"Next: python -m search_spaces.readers.imagenet check {given.data}")
            return 0
        found = list_images(given.data, given.list)
    except (OSError, ValueError) as error:
        print(f"imagenet: {error}", file=sys.stderr)
        return 1
    print(
        f"{given.data}: {len(found.train)} images to train with, {len(found.validation)} to test with, "
        f"{found.classes} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

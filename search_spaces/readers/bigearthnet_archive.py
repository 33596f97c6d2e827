"""A made-up BigEarthNet in the real one's formats, of a size one chooses, with classes that can be learnt.

python -m search_spaces.readers.bigearthnet_archive OUT --patches 2000 --version v2
"""

from __future__ import annotations

from pathlib import Path

from search_spaces.readers.bigearthnet_format import Version


def make_archive(
    directory: str | Path,
    *,
    patches: int = 2000,
    version: Version = "v2",
    seed: int = 0,
    processes: int | None = None,
) -> None:
    """Write a made-up archive: half of it to train with, a quarter each for validation and test."""
    del directory, patches, version, seed, processes
    raise NotImplementedError


def made_up_store(
    directory: str | Path, *, patches: int = 2000, seed: int = 0, processes: int | None = None
) -> Path:
    """The path for ``load_bigearthnet`` of a made-up archive of so many patches, made if it is not yet there.

    ``directory`` is where such things are kept. Several processes may call it at once: each gets the same
    path, and sees it only when it is complete.
    """
    del directory, patches, seed, processes
    raise NotImplementedError

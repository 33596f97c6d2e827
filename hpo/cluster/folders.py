"""Relative directories of campaign files, which count from the folder in which a command is given."""

from __future__ import annotations

import os
from pathlib import Path

from hpo.terminal import quoted


def second_campaign(file: Path, directory: Path) -> str | None:
    """A sentence where a campaign would begin in ``directory`` although the folder of ``file``, in which the command
    was not given, holds one under the same relative path; else None."""
    home = file.resolve().parent
    beside = home / directory
    if directory.is_absolute() or _holds_campaign(directory) or not _holds_campaign(beside):
        return None
    return (
        f'a second campaign begins in {directory.absolute()}, as directory = "{directory}" counts from this folder; '
        f"{beside} holds one already. To go on with that one, give the command in its folder: cd {quoted(home)}"
    )


def _holds_campaign(directory: Path) -> bool:
    return os.path.exists(directory / "campaign.json")  # Path.exists raises where storage fails

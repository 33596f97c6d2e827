"""``campaign.json``: the identity of the campaign that a directory belongs to, written once when it begins."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hpo.errors import CampaignError
from hpo.journal.durable import create_whole
from hpo.terminal import quoted

VERSION = 1
DAMAGED = "damaged"
"""Folder of the files that a repair set aside."""
Identity = dict[str, Any]

# A campaign may go on with another seed, which draws other configurations from then on.
_NOT_COMPARED = ("created", "seed")


def launch_folder(directory: Path, launch: int) -> Path:
    """Folder of the files that a launch of the campaign in ``directory`` alone writes."""
    return directory / "launches" / f"{launch:04d}"


def status_path(directory: Path, launch: int) -> Path:
    """Cache of the campaign's state as ``launch`` knows it: see ``hpo.results.overview``."""
    return launch_folder(directory, launch) / "status.json"


def write_identity(directory: Path, identity: Mapping[str, object]) -> None:
    """Make ``directory`` the home of the campaign that ``identity``, which JSON can hold, describes, unless it is one.
    ``version`` and ``created`` (Unix seconds) are added. CampaignError where the directory cannot be written."""
    content = {"version": VERSION, **identity, "created": identity.get("created", time.time())}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(content), indent=2)
        create_whole(directory / "campaign.json", text + b"\n")
    except OSError as error:
        raise unwritable(directory, error) from error


def check_writable(directory: Path) -> None:
    """Make ``directory`` if need be; CampaignError where files cannot be made there."""
    probe = directory / f".campaign.json.{uuid.uuid4().hex}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(directory, error) from error


def read_identity(directory: Path) -> Identity:
    """The identity in ``directory``; CampaignError where there is none, or it cannot be read."""
    path = directory / "campaign.json"
    try:
        identity = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if directory.suffix == ".toml" and directory.is_file():
            raise CampaignError(
                f"{directory} is a campaign file. Name the directory that it gives as `directory`; it is relative to "
                "where hpo was started."
            ) from None
        raise CampaignError(
            f"{directory} holds no campaign (it has no campaign.json). Name the directory that a campaign "
            "file gives as `directory`; it is relative to where hpo was started."
        ) from None
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror or error}). Give read access there."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CampaignError(
            f"{path} is not valid JSON ({error}). It is written once and never edited: restore it, or start "
            "the campaign in a new directory."
        ) from error
    if not isinstance(identity, dict) or identity.get("version") != VERSION:
        version = identity.get("version") if isinstance(identity, dict) else None
        raise CampaignError(
            f"{path} has version {version!r}; this hpo reads version {VERSION}. Use the hpo that wrote it, "
            "or start the campaign in a new directory."
        )
    return identity


def objectives_of(identity: Identity) -> dict[str, str]:
    """Direction ("minimize", "maximize") of each objective by name, in the task's order."""
    return dict(identity.get("objectives") or {"value": "minimize"})


def campaign_key(identity: Identity) -> str:
    """Sixteen hexadecimal digits that name the campaign with this identity."""
    return hashlib.blake2b(msgspec.json.encode(identity, order="sorted"), digest_size=8).hexdigest()


def differences(recorded: object, given: object, name: str = "") -> list[str]:
    """How two JSON-able values differ: ``["seed was 0, is 1"]``. Types count: 1 is not 1.0."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        found = []
        for key in [*recorded, *(key for key in given if key not in recorded)]:
            path = f"{name}.{key}" if name else str(key)
            if key not in given:
                found.append(f"{path} is gone (it was {_text(recorded[key])})")
            elif key not in recorded:
                found.append(f"{path} is new ({_text(given[key])})")
            else:
                found += differences(recorded[key], given[key], path)
        return found
    if _text(recorded) == _text(given):
        return []
    return [f"{name or 'the value'} was {_text(recorded)}, is {_text(given)}"]


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def check_identity(
    directory: Path,
    identity: Mapping[str, object],
    compare: Callable[[Identity, Identity], list[str]] = differences,
) -> Identity | None:
    """The recorded identity, or None where no campaign has begun in ``directory`` yet.

    Args:
        compare: makes sentences on differences between the recorded and the given identity, both without ``created``
            and ``seed``.

    Raises:
        CampaignError: another campaign is in the directory (the differences are listed), or it holds other files.
    """
    if not (directory / "campaign.json").exists():
        try:
            others = sorted(entry for entry in os.listdir(directory) if not _is_ours(entry))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unwritable(directory, error) from error
        if not others:
            return None
        # Another launch may have begun the campaign meanwhile.
        if not (directory / "campaign.json").exists():
            raise CampaignError(
                f"{directory} is not empty (it holds {others[0]!r}) and is no campaign's directory. Name a "
                "new or empty directory."
            )
    recorded = read_identity(directory)
    mine: Identity = msgspec.json.decode(msgspec.json.encode({"version": VERSION, **identity}))
    found = compare(_comparable(recorded), _comparable(mine))
    if found:
        remedy = "Undo the change to go on with it, or give this one a directory of its own"
        if recorded.get("objectives") == mine.get("objectives"):  # results can be compared
            source = json.dumps(str(directory), ensure_ascii=False)
            remedy = f"{remedy}, which can start from these results: known = [{source}]"
        raise CampaignError(f"{directory} holds another campaign: {'; '.join(found)}. {remedy}.")
    return recorded


def foreign_owner(directory: Path) -> str | None:
    """Name or number of the user who owns ``directory``, if that is not this process's user; None for root, who writes
    everywhere."""
    with suppress(OSError):
        owner = directory.stat().st_uid
        if os.geteuid() not in (0, owner):
            try:
                return pwd.getpwuid(owner).pw_name
            except KeyError:
                return f"user {owner}"
    return None


def second_campaign(file: Path, directory: Path) -> str | None:
    """A sentence where a campaign would begin in the relative ``directory`` of the campaign file ``file``, which counts
    from the working directory, although the folder of ``file`` holds a campaign under the same path; else None."""
    beside = file.resolve().parent / directory
    # Path.exists raises where storage fails.
    begun, begun_beside = (os.path.exists(one / "campaign.json") for one in (directory, beside))
    if directory.is_absolute() or begun or not begun_beside:
        return None
    return (
        f'a second campaign begins in {directory.absolute()}, as directory = "{directory}" counts from this folder; '
        f"{beside} holds one already. To go on with that one, give the command in its folder: "
        f"cd {quoted(file.resolve().parent)}"
    )


def _is_ours(entry: str) -> bool:
    return entry.startswith(".campaign.json.")


def _comparable(identity: Identity) -> Identity:
    return {key: value for key, value in identity.items() if key not in _NOT_COMPARED}


def unwritable(directory: Path, error: OSError) -> CampaignError:
    """Error for a directory in which this process may not write."""
    return CampaignError(
        f"{directory} cannot be used as a campaign's directory ({error.strerror or error}). "
        "Name a directory that you may write."
    )

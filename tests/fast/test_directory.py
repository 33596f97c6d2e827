"""A directory belongs to one campaign, and one process at a time is at work in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpo.errors import CampaignError
from hpo.journal import directory

_IDENTITY: dict[str, object] = {
    "task": "search_spaces.digits:task",
    "options": {"epochs": 10},
    "space": {"lr": {"low": 1e-5, "high": 0.1, "log": True}, "depth": {"low": 1, "high": 8}},
    "objectives": {"value": "minimize"},
    "seed": 0,
}


# Identity -------------------------------------------------------------------------------------------------


def test_a_new_directory_becomes_the_campaigns_and_goes_on_being_it(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "x"
    assert directory.check_identity(home, _IDENTITY) is None
    directory.write_identity(home, _IDENTITY)
    recorded = directory.check_identity(home, _IDENTITY)
    assert recorded == directory.read_identity(home)
    assert {key: recorded[key] for key in _IDENTITY} == _IDENTITY
    assert abs(recorded["created"] - time.time()) < 60
    assert os.listdir(home) == ["campaign.json"]


def test_tuples_and_another_seed_make_no_other_campaign(tmp_path: Path) -> None:
    directory.write_identity(tmp_path, {**_IDENTITY, "choices": ("a", "b")})
    directory.check_identity(tmp_path, {**_IDENTITY, "choices": ["a", "b"], "seed": 1})


def test_what_differs_is_listed(tmp_path: Path) -> None:
    directory.write_identity(tmp_path, _IDENTITY)
    changed = {
        **_IDENTITY,
        "task": "search_spaces.digits:other",
        "options": {},
        "space": {"lr": {"low": 1e-5, "high": 0.2, "log": 1}, "depth": {"low": 1, "high": 8}, "width": 3},
    }
    with pytest.raises(CampaignError) as caught:
        directory.check_identity(tmp_path, changed)
    text = str(caught.value)
    for words in (
        "digits:other",
        "options.epochs",
        "lr.high was 0.1, is 0.2",
        "lr.log was true, is 1",
        "space.width",
    ):
        assert words in text
    assert "depth" not in text


def test_a_directory_with_other_files_is_refused_but_not_for_those_of_a_launch_that_died(
    tmp_path: Path,
) -> None:
    (tmp_path / ".campaign.json.0123").touch()
    assert directory.check_identity(tmp_path, _IDENTITY) is None
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CampaignError, match="thesis"):
        directory.check_identity(tmp_path, _IDENTITY)


def test_of_two_that_begin_at_once_the_first_has_the_directory(tmp_path: Path) -> None:
    directory.check_writable(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    directory.write_identity(tmp_path / "run", _IDENTITY)
    directory.write_identity(tmp_path / "run", {**_IDENTITY, "task": "another"})
    assert directory.read_identity(tmp_path / "run")["task"] == _IDENTITY["task"]
    assert [one.name for one in (tmp_path / "run").iterdir()] == ["campaign.json"]


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for action in (
        lambda: directory.check_identity(path, _IDENTITY),
        lambda: directory.write_identity(path, _IDENTITY),
        lambda: directory.check_writable(path),
        lambda: directory.check_writable(path / "below"),
    ):
        with pytest.raises(CampaignError):
            action()
    for name in ("file", "mine.toml"):
        (tmp_path / name).touch()
        with pytest.raises(CampaignError, match="Name the directory"):
            directory.read_identity(tmp_path / name)


@pytest.mark.parametrize("content", ["{", '{"version": 2}', "[]"])
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "campaign.json").write_text(content)
    with pytest.raises(CampaignError, match="campaign"):
        directory.check_identity(tmp_path, _IDENTITY)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write_identity(tmp_path, _IDENTITY)
    before = (tmp_path / "campaign.json").read_bytes()

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CampaignError, match="No space left on device"):
        directory.write_identity(tmp_path, {"task": "other"})
    assert (tmp_path / "campaign.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["campaign.json"]


@pytest.mark.parametrize(("user", "said"), [(0, None), (12345, "root"), (54321, "user 12345")])
def test_another_user_s_directory_is_noticed(
    monkeypatch: pytest.MonkeyPatch, user: int, said: str | None
) -> None:
    owner = 12345 if user == 54321 else 0
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("pwd.getpwuid", {0: SimpleNamespace(pw_name="root")}.__getitem__)
    home = SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=owner))
    assert directory.foreign_owner(home) == said  # type: ignore[arg-type]

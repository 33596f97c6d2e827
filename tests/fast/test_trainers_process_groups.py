"""Process groups are given back without waiting for threads that wait for us."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trainers.communication import process_groups


def test_gloo_s_threads_get_to_let_go_where_torch_holds_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []

    class Group:
        def __del__(self) -> None:
            ends.append("group")

    thread = threading.Thread(target=lambda: ends.append("thread"))

    def others_run(seconds: float) -> None:
        thread.start()
        thread.join(60)

    monkeypatch.setattr(process_groups, "_HOLDS_INTERPRETER", True)
    monkeypatch.setattr(process_groups.time, "sleep", others_run)
    monkeypatch.setattr(process_groups.dist, "destroy_process_group", lambda group: None)
    groups: list[Any] = [Group()]
    process_groups.give_back(groups)
    assert ends == ["thread", "group"] and groups == []

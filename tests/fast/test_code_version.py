"""Which code evaluated: what is hashed and kept of it, and what is said where it has changed."""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import journals
import pytest
from places import ROOT

import hpo
from hpo.islands.resume.fold import fold
from hpo.journal import directory
from hpo.journal.code_copies import change, copy_path, keep_copy, read_copy
from hpo.ledger.journals import read_directory
from hpo.results import overview
from hpo.results.record import load
from hpo.task import code_version
from hpo.task.code_version import BY_VALUE, CodeVersion, code_of
from hpo.task.task import Task, TaskSource, load_task
from hpo.views import text
from hpo.views.terminal import best_report

SPACE = hpo.SearchSpace(x=hpo.Float(0.0, 1.0))
FILES = {
    "task.py": "import json, side.net\nfrom beside import train\ndef evaluate(trial):\n    import lazily\n",
    "beside.py": "import further, task\n",
    "further.py": "this is no Python\n",
    "lazily.py": "import gone, installed\n",
    "side/__init__.py": "",
    "side/net.py": "from . import layers\nfrom ..further import nothing\nfrom .... import far\n",
    "side/layers.py": "",
    "side/not_imported.py": "",
    "not_imported.py": "",
    ".venv/site-packages/installed.py": "",
}
IMPORTED = [
    "beside.py",
    "further.py",
    "lazily.py",
    "side/__init__.py",
    "side/layers.py",
    "side/net.py",
    "task.py",
]


def constant(trial: hpo.Trial) -> float:
    return 0.0


def write(home: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)


def code_at(home: Path, place: str = "task.py") -> CodeVersion:
    """The code of a task that a campaign file in ``home`` names."""
    task = Task(SPACE, constant)
    task.source = TaskSource(reference=f"{place}:task", base=str(home))
    return code_of(task)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "project"
    write(home, FILES)
    monkeypatch.syspath_prepend(str(home / ".venv/site-packages"))
    monkeypatch.syspath_prepend(str(home))
    return home


# Files ----------------------------------------------------------------------------------------------------


def test_a_changed_file_changes_the_hash_where_it_is_imported(project: Path) -> None:
    for name in FILES:
        before = code_at(project)
        assert code_at(project).hash == before.hash and len(before.hash) == 12
        (project / name).write_text(FILES[name] + "# changed\n")
        after = code_at(project)
        assert before.differences(after) == ([name] if name in IMPORTED else [])
        assert (before.hash != after.hash) == (name in IMPORTED)


def test_links_that_lead_out_are_not_followed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("")
    (project / "further.py").unlink()
    (project / "further.py").symlink_to(tmp_path / "secret.py")
    assert sorted(code_at(project).files) == [name for name in IMPORTED if name != "further.py"]


def test_only_the_package_of_the_task_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "package_of_task/__init__.py": "",
        "package_of_task/model.py": "",
        "package_of_task/tasks/one.py": "import package_of_task.model, not_in_package, json\nfrom . import two",
        "package_of_task/tasks/two.py": "from ..model import Net",
        "package_of_task/json.py": "",
        "not_in_package.py": "",
    }
    write(tmp_path, files)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("package_of_task.tasks.one")
    module.__file__ = str(tmp_path / "package_of_task/tasks/one.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = code_at(tmp_path / "elsewhere", module.__name__)
    assert sorted(found.files) == ["__init__.py", "model.py", "tasks/one.py", "tasks/two.py"]


def test_hpo_is_no_code_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A task's file in the repository, where hpo is in a directory beside it.
    monkeypatch.setattr(code_version, "_OURS", tuple(tmp_path / name for name in ("hpo", "trainers")))
    write(tmp_path, {"task.py": "import hpo.space, trainers.loop, mine", "mine.py": ""})
    write(tmp_path, {"hpo/__init__.py": "", "hpo/space.py": "", "trainers/loop.py": ""})
    assert sorted(code_at(tmp_path).files) == ["mine.py", "task.py"]


def test_a_bundled_task_has_the_files_of_its_package() -> None:
    found = code_of(load_task("search_spaces.digits:task", base=ROOT)).files
    assert "digits.py" in found or "digits/__init__.py" in found
    assert all((ROOT / "search_spaces" / name).is_file() for name in found) and len(found) > 1


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 2), ("MOST_BYTES", 120)])
def test_there_is_a_limit(
    limit: str, value: int, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code_version, limit, value)
    code = code_at(project)
    assert "task.py" in code.files and len(code.files) < len(IMPORTED)
    assert keep_copy(tmp_path, code) and read_copy(tmp_path, code.hash) == code


def test_what_cannot_be_read_has_no_hash(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert code_at(project).hash == ""
    monkeypatch.undo()
    (project / "task.py").unlink()
    assert code_at(project).hash == "" and code_at(project, "no.such_module").hash == ""


# Notebooks and scripts ------------------------------------------------------------------------------------

CELLS = """
import functools, plain_helper, helper_package.deep
from more_help import assist
EPOCHS = 10
UNUSED = 3

class Net:
    def forward(self):
        return EPOCHS

def train(x):
    return Net().forward() + plain_helper.add(x) + assist() + helper_package.deep.add(x)

def unused():
    pass

def made(factor):
    def evaluate(trial):
        import late_help
        return factor * train(trial.params["x"])
    return evaluate
evaluate = made(7)
"""
HELPERS = {
    "plain_helper.py": "def add(x):\n    return x\n",
    "more_help.py": "def assist():\n    return 0\n",
    "late_help.py": "",
    "helper_package/__init__.py": "",
    "helper_package/deep.py": "def add(x):\n    return x\n",
    "other.py": "",
}


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CodeVersion]:
    """``notebook(cells, wrap)``: the code of ``evaluate`` after these cells, in a ``__main__`` without a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    for name in ("plain_helper", "more_help", "late_help", "helper_package", "helper_package.deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    write(tmp_path, HELPERS)
    importlib.invalidate_caches()

    def run(
        cells: str = CELLS, wrap: Callable[[Any], Any] = lambda evaluate: evaluate, *, source: bool = True
    ) -> CodeVersion:
        name = f"<cell {len(cells)} {hash(cells)} {source}>"
        if source:
            linecache.cache[name] = (len(cells), None, cells.splitlines(True), name)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(cells, name, "exec"), names)
        vars(sys.modules["__main__"]).update(names)
        return code_of(Task(SPACE, wrap(names["evaluate"])))

    return run


def test_of_a_notebook_the_function_counts_with_what_it_uses(notebook: Callable[..., CodeVersion]) -> None:
    code = notebook()
    assert sorted(code.files) == sorted({BY_VALUE, *HELPERS} - {"other.py"})
    kept = code.files[BY_VALUE].decode()
    for line in (
        '    return factor * train(trial.params["x"])',
        "def train(x):",
        "EPOCHS = 10",
        "factor = 7",
    ):
        assert f"\n{line}\n" in f"\n{kept}", kept
    assert "unused" not in kept and "UNUSED" not in kept


def test_a_change_in_a_notebook_or_in_a_file_beside_it(
    notebook: Callable[..., CodeVersion], tmp_path: Path
) -> None:
    first = notebook()
    assert first.hash and first.hash == notebook().hash
    for before, after, counts in (
        ("factor * train", "factor + train", True),
        ("EPOCHS = 10", "EPOCHS = 20", True),
        ("Net().forward()", "2 * Net().forward()", True),
        ("return EPOCHS", "return EPOCHS + 1", True),
        ("made(7)", "made(8)", True),
        ("UNUSED = 3", "UNUSED = 4", False),
        ("    pass", "    return 5", False),
    ):
        changed = notebook(CELLS.replace(before, after))
        assert first.differences(changed) == ([BY_VALUE] if counts else []), before
    first = notebook()
    (tmp_path / "more_help.py").write_text("def assist():\n    return 1\n")
    assert first.differences(notebook()) == ["more_help.py"]
    assert notebook(source=False).hash == ""


def test_the_source_of_a_partial_s_function_counts(notebook: Callable[..., CodeVersion]) -> None:
    versions = [
        notebook(f"def evaluate(trial, x=0): return {value}\n", lambda f: functools.partial(f, x=1)).hash
        for value in (1, 2)
    ]
    assert "" != versions[0] != versions[1]


# Copies ---------------------------------------------------------------------------------------------------

OLD = CodeVersion({"task.py": b"1\n", "side/net.py": b""})
NEW = CodeVersion({"task.py": b"2\n", "side/net.py": b"", "more.py": b""})


def test_a_copy_is_made_once_and_read_back(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        assert keep_copy(tmp_path, OLD)
    finally:
        os.umask(former)
    home = copy_path(tmp_path, OLD.hash)
    assert (home / "side").stat().st_mode & 0o777 == 0o750
    assert (home / "task.py").stat().st_mode & 0o777 == 0o640
    first = (home / "task.py").stat()
    assert keep_copy(tmp_path, OLD) and (home / "task.py").stat().st_ino == first.st_ino
    assert read_copy(tmp_path, OLD.hash) == OLD and os.listdir(tmp_path / "code") == [OLD.hash]
    (home / "task.py").write_text("")  # as a power cut may leave it
    assert read_copy(tmp_path, OLD.hash) is None
    assert keep_copy(tmp_path, OLD) and read_copy(tmp_path, OLD.hash) == OLD


@pytest.mark.parametrize("link", ["code", f"code/{OLD.hash}", f"code/{OLD.hash}/side"])
def test_nothing_is_written_through_a_link(link: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "run" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    assert not keep_copy(tmp_path / "run", OLD)
    assert os.listdir(outside) == [] and read_copy(tmp_path / "run", OLD.hash) is None


def test_a_change_is_said_with_its_files(tmp_path: Path) -> None:
    keep_copy(tmp_path, OLD)
    assert "task.py" not in change(tmp_path, OLD.hash, NEW.hash)
    keep_copy(tmp_path, NEW)
    said = change(tmp_path, OLD.hash, NEW.hash)
    assert "more.py, task.py" in said and f"{tmp_path}/code/{OLD.hash}" in said
    assert not any(change(tmp_path, *pair) for pair in ((OLD.hash, OLD.hash), ("", NEW.hash), (OLD.hash, "")))


# Results --------------------------------------------------------------------------------------------------


def launch(home: Path, number: int, code: str, *finished: tuple[int, float]) -> None:
    """Launch ``number`` with this code, in which individuals of these sequence numbers got these values."""
    version = {"code": code} if code else {}
    records = [journals.finished(f"0-0-{one}", value, params={"x": 0.5}) for one, value in finished]
    journals.write(
        home, [journals.launched(time=1.0 * number, **version), *records], number, time=1.0 * number
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory.write_identity(tmp_path, {"task": "x:y", "objectives": {"value": "minimize"}, "seed": 0})
    keep_copy(tmp_path, OLD)
    keep_copy(tmp_path, NEW)
    return tmp_path


def test_the_best_says_that_its_code_has_changed_since(home: Path) -> None:
    launch(home, 1, OLD.hash, (0, 0.25), (1, 0.5))
    launch(home, 2, NEW.hash, (2, 0.75))
    said = best_report.best(home, None)
    assert "0-0-0 was evaluated: more.py, task.py. " in said and f"{home}/code/{OLD.hash}" in said
    entries = json.loads(best_report.best_json(home, 3))
    assert [one["code"] for one in entries] == [OLD.hash, OLD.hash, NEW.hash]
    status = text.status(home, overview.of(home))
    assert f"2 versions, in {home}/code; last changed before launch 2: more.py, task.py\n" in status
    launch(home, 3, NEW.hash, (3, 0.125))
    launch(home, 4, "", (4, 0.5))  # could not be read
    assert "code" not in best_report.best(home, None), "the best is of the last known version"


@pytest.mark.parametrize("codes", [(OLD.hash, OLD.hash), ("", NEW.hash), ("", "")])
def test_nothing_is_said_where_no_change_is_known(codes: tuple[str, str], home: Path) -> None:
    launch(home, 1, codes[0], (0, 0.25))
    launch(home, 2, codes[1], (1, 0.75))
    assert "code" not in best_report.best(home, None)
    assert "code" not in text.status(home, overview.of(home)).replace(str(home), "")
    assert json.loads(best_report.best_json(home, None))[0]["code"] == (codes[0] or None)


def test_a_launch_compares_with_the_last_that_has_a_hash(home: Path) -> None:
    for number, code in enumerate([OLD.hash, NEW.hash, ""], start=1):
        launch(home, number, code)
    state = fold(read_directory(home), space=SPACE, islands=1, losses=Task(SPACE, constant).losses)
    assert state.code == NEW.hash


@pytest.mark.parametrize("code", ["../../etc", "0" * 11, "0" * 12 + "\n", "G" * 12])
def test_a_hash_is_nothing_but_a_hash(code: str, home: Path) -> None:
    launch(home, 1, code, (0, 0.25))
    with pytest.raises(hpo.HpoError, match="line 2"):
        load(home)

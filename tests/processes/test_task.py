"""A task is checked when defined, found by name or sent by value, and its faults are told to its author."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from places import ROOT
from programs import called
from refusals import refused

import hpo
from hpo.errors import CampaignError, HpoError, UsageError
from hpo.space.space import Categorical, Float, Int, SearchSpace
from hpo.task import importing
from hpo.task.task import Task, TaskSource, load_task

SPACE = SearchSpace(x=Float(0, 1), n=Int(1, 8), m=Int(0, 1, when={"o": "a"}), o=Categorical("a", "b"))
POINT = {"x": 0.5, "n": 4, "o": "b"}
F1 = {"f1": "maximize"}
LOCK = threading.Lock()


def evaluate(trial: object) -> float:
    return 1.0


def narrow(params: dict[str, object]) -> bool:
    return params["n"] != 7


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    """Imports of one test must not be found by the next."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


# --- definitions --------------------------------------------------------------------------------------------


def test_objectives_have_names_an_order_and_a_sign() -> None:
    task = Task(SPACE, evaluate, "maximize")
    assert task.losses({"value": 3.0}) == (-3.0,) and Task(SPACE, evaluate).losses({"value": 3.0}) == (3.0,)
    assert task.name == f"{__name__}:evaluate"
    assert task.describe() == {"space": SPACE.describe(), "objectives": {"value": "maximize"}}
    assert json.loads(json.dumps(task.describe())) == task.describe()
    task = Task(SPACE, evaluate, objectives={"f1": "maximize", "seconds": "minimize"})
    assert task.losses({"seconds": 2.0, "f1": 0.5, "other": 7.0}) == (-0.5, 2.0)


def test_points_are_canonical() -> None:
    task = Task(
        SPACE, evaluate, default={"o": "b", "n": 4, "x": 1}, points=[POINT, {**POINT, "o": "a", "m": 1}]
    )
    assert repr(task.default) == "{'x': 1.0, 'n': 4, 'o': 'b'}"
    assert task.points == (POINT, {"x": 0.5, "n": 4, "m": 1, "o": "a"})


def test_all_constraints_must_hold_and_none_changes_the_configuration() -> None:
    task = Task(SPACE, evaluate, constraints=[narrow, lambda params: params.pop("x") < 0.9])
    params = {**POINT}
    assert task.allows(params) and params == POINT
    assert not task.allows({**POINT, "n": 7}) and not task.allows({**POINT, "x": 0.95})


def test_a_constraint_that_raises_is_named_with_the_configuration_before_anything_starts(
    tmp_path: Path,
) -> None:
    task = Task(SPACE, evaluate, constraints=[narrow, lambda params: params["momentum"] > 0])
    words = "<lambda>", "test_task.py, line", "KeyError: 'momentum'", str(POINT), "True or False"
    refused(lambda: task.allows({**POINT}), *words, error=CampaignError)
    space = SearchSpace(heads=Int(0, 49), x=Float(0, 1))
    task = Task(space, evaluate, constraints=[lambda params: 8 / params["heads"] > 0])  # for one in fifty
    campaign = hpo.Campaign(task, directory=tmp_path / "run", evaluations=4, isolation="inline")
    refused(campaign.run, "ZeroDivisionError", error=CampaignError)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answer", [0.5, -0.5, 0.0, np.float32(1), None])
def test_a_constraint_that_returns_a_violation_or_nothing_is_refused(answer: object) -> None:
    task = Task(SPACE, evaluate, constraints=[lambda params: answer])
    refused(lambda: task.allows({**POINT}), "returned", "True or False", error=CampaignError)


class Callee:
    def __call__(self, trial: object) -> float:
        return 0.0


def test_anything_that_takes_a_trial_evaluates() -> None:
    assert Task(SPACE, Callee()).name == f"{__name__}:Callee"
    assert "<lambda>" in Task(SPACE, functools.partial(lambda trial, more: 0.0, more=1)).name


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        (({"x": Float(0, 1)}, evaluate), {}, ["space must be a SearchSpace", "hpo.SearchSpace("]),
        ((SPACE, 3), {}, ["evaluate", "not 3"]),
        ((SPACE, lambda: 0), {}, ["the trial alone", "<lambda>", "positional", "def evaluate(trial)"]),
        ((SPACE, lambda a, b: 0), {}, ["'b'", "functools.partial"]),
        ((SPACE, evaluate, "maximise"), {}, ["direction = 'maximise'", 'Did you mean "maximize"?']),
        ((SPACE, evaluate, 3), {}, ["direction = 3", "minimize, maximize"]),
        ((SPACE, evaluate, "maximize"), {"objectives": F1}, ["direction = 'maximize'", "Remove direction"]),
        ((SPACE, evaluate), {"objectives": {"f1": "max"}}, ["objectives['f1'] = 'max'", '"maximize"']),
        ((SPACE, evaluate), {"objectives": ["f1"]}, ["objectives = ['f1']"]),
        ((SPACE, evaluate), {"objectives": {}}, ["objectives = {}"]),
        ((SPACE, evaluate), {"constraints": narrow}, ["constraints = ", "constraints=[…]"]),
        ((SPACE, evaluate), {"constraints": ["n < 7"]}, ["constraints[0] = 'n < 7'"]),
        ((SPACE, evaluate), {"default": {**POINT, "n": 9}}, ["default: n = 9", "from 1 to 8"]),
        ((SPACE, evaluate), {"points": [POINT, {"x": 0.5, "o": "b"}]}, ["points[1]: n is missing"]),
        ((SPACE, evaluate), {"points": POINT}, ["points = ", "default={…}"]),
        (
            (SPACE, evaluate),
            {"constraints": [narrow], "default": {**POINT, "n": 7}},
            ["default: constraint narrow (", "test_task.py, line", "'n': 7"],
        ),
    ],
)
def test_tasks_that_cannot_be(
    arguments: tuple[object, ...], keywords: dict[str, object], words: list[str]
) -> None:
    refused(lambda: Task(*arguments, **keywords), *words)  # type: ignore[arg-type]


# --- by name ------------------------------------------------------------------------------------------------

MODULE = """
    import hpo

    space = hpo.SearchSpace(x=hpo.Float(0, 1))

    def evaluate(trial):
        return 1.0

    def make(epochs, rate=1.0):
        return hpo.Task(space, evaluate, "maximize" if epochs > 1 else "minimize")

    def nothing(): return 3
    def broken(): return {}["missing"]
    def anything(**options): return task
    task = hpo.Task(space, evaluate)
"""


def write(path: Path, text: str = MODULE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_a_task_in_a_file_beside_the_campaign(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "neighbour_of_mine.py", "value = 7")
    write(tmp_path / "sub" / "mine_beside.py", "import neighbour_of_mine" + textwrap.dedent(MODULE))
    reference = "sub/mine_beside.py:task"
    task = load_task(reference, base=tmp_path)
    assert task.name == "mine_beside:evaluate" and task.evaluate(None) == 1.0
    assert load_task(reference, base=tmp_path) is task
    assert task.source == TaskSource(reference=reference, base=str(tmp_path), path=task.source.path)


def test_a_file_whose_name_another_module_has(tmp_path: Path) -> None:
    write(tmp_path / "json.py")
    task = load_task("json.py:task", base=tmp_path)
    assert load_task("json.py:task", base=tmp_path) is task
    assert sys.modules["json"] is json
    assert load_task(f"{write(tmp_path / 'other' / 'json.py')}:task", base=tmp_path) is not task


def test_a_task_in_a_package_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine_package" / "digits.py")
    monkeypatch.chdir(tmp_path)
    assert load_task("mine_package.digits:task", base=Path("/")).name == "mine_package.digits:evaluate"
    for wrong, meant in (("mine_package.digit", '"digits"'), ("mine_packages.digits", '"mine_package"')):
        refused(lambda: load_task(f"{wrong}:task", base=tmp_path), "no module", meant, error=CampaignError)  # noqa: B023


def test_a_function_is_called_with_the_options(tmp_path: Path) -> None:
    write(tmp_path / "mine_options.py")
    task = load_task("mine_options.py:make", base=tmp_path, options={"epochs": 3})
    assert task.objectives == {"value": "maximize"}
    assert task.source is not None and task.source.options == {"epochs": 3}
    assert load_task("mine_options.py:anything", base=tmp_path, options={"a": 1}).default is None


@pytest.mark.parametrize(
    ("reference", "options", "kind", "words"),
    [
        ("mine.py", {}, UsageError, ['Write "mine.py:task"']),
        ("mine.py:", {}, UsageError, ['"package.module:name"']),
        (":task", {}, UsageError, ['"package.module:name"']),
        ("mne.py:task", {}, CampaignError, ["no file", "mne.py", 'Did you mean "mine.py"?']),
        ("xyzzy.py:task", {}, CampaignError, ["no file", "xyzzy.py", "Valid: "]),
        ("mine.py:tsk", {}, CampaignError, ["no 'tsk'", 'Did you mean "task"?']),
        ("mine.py:space", {}, CampaignError, ["is a SearchSpace", "hpo.Task", "Valid: task."]),
        ("mine.py:nothing", {}, CampaignError, ["returned a int", "hpo.Task"]),
        ("mine.py:task", {"epochs": 3}, UsageError, ["(epochs)", "Remove them"]),
        ("mine.py:make", {}, UsageError, ['task option "epochs" is missing', "[task_options]"]),
        (
            "mine.py:make",
            {"epoch": 3, "colour": "red"},
            UsageError,
            [
                'option "epoch"',
                'Did you mean "epochs"?',
                '\ntask option "colour"',
                '\ntask option "epochs" is missing',
            ],
        ),
        ("mine.py:evaluate", {}, UsageError, ['task option "trial" is missing']),
        ("mine.py:broken", {}, CampaignError, ["KeyError", "mine.py", "line", "KeyError: 'missing'"]),
        ("mine:task", {}, CampaignError, ['no module "mine"', 'Write "mine.py:task" for the file in']),
    ],
)
def test_references_that_cannot_be(
    tmp_path: Path, reference: str, options: dict[str, object], kind: type[HpoError], words: list[str]
) -> None:
    write(tmp_path / "mine.py")
    refused(lambda: load_task(reference, base=tmp_path, options=options), reference, *words, error=kind)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def f():\n    return 1 / 0\nvalue = f()\n",
            ["line 3, in <module>", "line 2, in f", "ZeroDivisionError"],
        ),
        ("def f(:\n", ["SyntaxError", "line 1"]),
        ("import sys\nsys.exit(3)\n", ["SystemExit: 3", "line 2"]),
        ("import no_such_module_anywhere\n", ["ModuleNotFoundError", "no_such_module_anywhere", "line 1"]),
        ("import unparsed_part\n", ["SyntaxError. Correct the code that this points to", "unparsed_part.py"]),
    ],
)
def test_a_module_that_raises_shows_its_own_traceback_and_may_be_corrected(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    write(tmp_path / "unparsed_part.py", "x = (\n")
    write(tmp_path / "wrong.py", text)
    for reference in ("wrong.py:task", "wrong:task"):
        told = refused(lambda: load_task(reference, base=tmp_path), reference, *words, error=CampaignError)  # noqa: B023
        assert "importlib" not in told and "importing.py" not in told
    write(tmp_path / "wrong.py")
    assert load_task("wrong.py:task", base=tmp_path).objectives


# --- whose line it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("vit_ab", {"data": "/nowhere"}),
        ("vit_ab", {"data": "x" * 300}),
        ("vit_oialr", {"epochs": [1]}),
        ("bigearthnet", {"data": "/etc/passwd"}),
    ],
)
def test_a_bundled_campaign_s_sentence_names_no_line_of_ours_or_of_a_library_s(
    module: str, options: dict[str, object]
) -> None:
    """What raises them lies within contextlib's frames, or in functions that dataclasses wrote."""
    reference = f"search_spaces.{module}:make_task"
    told = refused(lambda: load_task(reference, base=Path(), options=options), reference)
    assert ", line " not in told


GIVEN = """\
from pathlib import Path

import hpo
from search_spaces import options as check


def make(data="here", width=1, low=0):
    data = Path(data)
    with check.as_usage():
        width = int(width)
    return hpo.Task(hpo.SearchSpace(x=hpo.Float(low, 1.0)), lambda trial: 1.0)
"""


@pytest.mark.parametrize("installed", [False, True])
def test_the_place_named_is_in_the_user_s_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        monkeypatch.setattr(importing, "_LIBRARIES", (*importing._LIBRARIES, f"{tmp_path}/"))
    path = write(tmp_path / "given.py", GIVEN)
    for options, kind, words in (
        ({"data": 3}, CampaignError, ["TypeError", f"Correct {path}, line 8, ", "pathlib"]),
        ({"width": "wide"}, UsageError, [f"{path}, line 9: invalid literal for int()"]),
        ({"low": 2}, UsageError, [f"{path}, line 11: Float(2, 1.0): low must"]),
    ):
        refused(lambda: load_task("given.py:make", base=tmp_path, options=options), *words, error=kind)  # noqa: B023


# --- in another process -------------------------------------------------------------------------------------

CHILD = """
import json, sys
import msgspec
from hpo.task.task import TaskSource
task = msgspec.json.decode(sys.stdin.buffer.read(), type=TaskSource).load()
print(json.dumps([task.evaluate(None), task.objectives, task.default, "torch" in sys.modules]))
"""
CLOSURE = """
import hpo, msgspec
from hpo.task.task import TaskSource
factor = 4
def build(offset):
    space = hpo.SearchSpace(
        x=hpo.Float(0, 1), n=hpo.Int(0, 3, when={"c": True}), c=hpo.Categorical(True, False)
    )
    def evaluate(trial):
        return factor * 10 + offset
    default = {"x": 0.25, "c": False}
    return hpo.Task(space, evaluate, constraints=[lambda p: p["x"] < 1], default=default)
print(msgspec.json.encode(TaskSource.of(build(2))).decode())
"""


def run(script: str, text: str = "") -> str:
    """What a new process prints that finds hpo, and nothing else of ours."""
    return called(sys.executable, "-c", script, input=text, env={"PYTHONPATH": str(ROOT)}, cwd="/").stdout


def in_a_child(source: TaskSource) -> object:
    """What the task gives in a new process that gets only the JSON."""
    return json.loads(run(CHILD, msgspec.json.encode(source).decode()))


def test_a_task_is_found_by_name_or_sent_by_value_to_a_child(tmp_path: Path) -> None:
    write(tmp_path / "mine_in_child.py")
    source = TaskSource.of(load_task("mine_in_child.py:make", base=tmp_path, options={"epochs": 3}))
    assert source.pickled is None and in_a_child(source) == [1.0, {"value": "maximize"}, None, False]
    # By value, with the modules that its parent finds.
    write(tmp_path / "path" / "mine_on_the_path.py")
    sys.path.insert(0, str(tmp_path / "path"))
    source = TaskSource.of(importlib.import_module("mine_on_the_path").task)
    assert source.reference is None and in_a_child(source) == [1.0, {"value": "minimize"}, None, False]
    source = msgspec.json.decode(run(CLOSURE), type=TaskSource)
    assert source.reference is None
    assert in_a_child(source) == [42, {"value": "minimize"}, {"x": 0.25, "c": False}, False]


def test_what_cannot_be_pickled_is_named_with_what_uses_it() -> None:
    inner = LOCK

    def helper() -> object:
        return inner

    def locked(trial: object) -> float:
        return 1.0 if helper() else 0.0

    words = "evaluate, which uses helper, which uses inner, which cannot", "lock", 'isolation = "inline"'
    refused(lambda: TaskSource.of(Task(SPACE, locked)), *words, error=CampaignError)
    task = Task(SPACE, lambda trial: 0.0, constraints=[lambda params: inner is not None])
    refused(lambda: TaskSource.of(task), "<lambda>", "test_task.py, line", "uses inner", error=CampaignError)
    refused(
        lambda: TaskSource(pickled=b"no pickle").load(), "cannot be rebuilt", "isolation", error=CampaignError
    )

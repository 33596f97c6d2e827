"""A task is checked when defined, found by name or sent by value, and its faults are told to its author."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from places import ROOT

import hpo
from hpo.errors import CampaignError, UsageError
from hpo.space.space import Categorical, Float, Int, SearchSpace
from hpo.task import importing as usercode
from hpo.task.task import Task, TaskSource, load_task

SPACE = SearchSpace(x=Float(0, 1), n=Int(1, 8), m=Int(0, 1, when={"o": "a"}), o=Categorical("a", "b"))
POINT = {"x": 0.5, "n": 4, "o": "b"}
F1 = {"f1": "maximize"}


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


def test_a_task_has_one_objective_called_value() -> None:
    task = Task(SPACE, evaluate, "maximize")
    assert task.objectives == {"value": "maximize"}
    assert task.losses({"value": 3.0}) == (-3.0,)
    assert Task(SPACE, evaluate).losses({"value": 3.0}) == (3.0,)
    assert task.name == f"{__name__}:evaluate"
    assert task.describe() == {"space": SPACE.describe(), "objectives": {"value": "maximize"}}
    assert json.loads(json.dumps(task.describe())) == task.describe()


def test_several_objectives_keep_their_order() -> None:
    task = Task(SPACE, evaluate, objectives={"f1": "maximize", "seconds": "minimize"})
    assert task.losses({"seconds": 2.0, "f1": 0.5, "other": 7.0}) == (-0.5, 2.0)


def test_points_are_canonical() -> None:
    task = Task(
        SPACE, evaluate, default={"o": "b", "n": 4, "x": 1}, points=[POINT, {**POINT, "o": "a", "m": 1}]
    )
    assert repr(task.default) == "{'x': 1.0, 'n': 4, 'o': 'b'}"
    assert task.points == (POINT, {"x": 0.5, "n": 4, "m": 1, "o": "a"})


def test_all_constraints_must_hold() -> None:
    task = Task(SPACE, evaluate, constraints=[narrow, lambda params: params["x"] < 0.9])
    assert task.allows({**POINT})
    assert not task.allows({**POINT, "n": 7})
    assert not task.allows({**POINT, "x": 0.95})


def test_a_constraint_cannot_change_the_configuration() -> None:
    params = {**POINT}
    assert Task(SPACE, evaluate, constraints=[lambda given: given.pop("x") > 0]).allows(params)
    assert params == POINT


def test_a_constraint_that_raises_for_one_in_fifty_is_found_before_anything_starts(tmp_path: Path) -> None:
    space = SearchSpace(heads=Int(0, 49), x=Float(0, 1))
    task = Task(space, evaluate, constraints=[lambda params: 8 / params["heads"] > 0])
    campaign = hpo.Campaign(task, directory=tmp_path / "run", evaluations=4, isolation="inline")
    with pytest.raises(CampaignError, match="ZeroDivisionError: division by zero"):
        campaign.run()
    assert not (tmp_path / "run").exists()


def test_a_constraint_that_raises_is_named_with_the_configuration() -> None:
    task = Task(SPACE, evaluate, constraints=[narrow, lambda params: params["momentum"] > 0])
    with pytest.raises(CampaignError) as caught:
        task.allows({**POINT})
    told = str(caught.value)
    for part in (
        "<lambda>",
        "test_task.py, line",
        "KeyError: 'momentum'",
        str(POINT),
        "must return True or False",
    ):
        assert part in told


@pytest.mark.parametrize("answer", [0.5, -0.5, 0.0, np.float32(1), None])
def test_a_constraint_that_returns_a_violation_or_nothing_is_refused(answer: object) -> None:
    task = Task(SPACE, evaluate, constraints=[lambda params: answer])
    with pytest.raises(CampaignError, match=r"returned .*True or False"):
        task.allows({**POINT})


class Callee:
    def __call__(self, trial: object) -> float:
        return 0.0


def test_anything_that_takes_a_trial_evaluates() -> None:
    assert Task(SPACE, Callee()).name == f"{__name__}:Callee"
    two = functools.partial(lambda trial, more: 0.0, more=1)
    assert "<lambda>" in Task(SPACE, two).name


@pytest.mark.parametrize(
    ("define", "told"),
    [
        (lambda: Task({"x": Float(0, 1)}, evaluate), ["space must be a SearchSpace", "hpo.SearchSpace("]),
        (lambda: Task(SPACE, 3), ["evaluate must be a function of the trial, not 3"]),
        (
            lambda: Task(SPACE, lambda: 0),
            ["the trial alone", "<lambda>", "positional", "def evaluate(trial)"],
        ),
        (lambda: Task(SPACE, lambda a, b: 0), ["missing a required argument: 'b'", "functools.partial"]),
        (lambda: Task(SPACE, evaluate, "maximise"), ["direction = 'maximise'", 'Did you mean "maximize"?']),
        (lambda: Task(SPACE, evaluate, 3), ["direction = 3", "Valid: minimize, maximize."]),
        (
            lambda: Task(SPACE, evaluate, "maximize", objectives=F1),
            ["direction = 'maximize'", "Remove direction"],
        ),
        (lambda: Task(SPACE, evaluate, objectives={"f1": "max"}), ["objectives['f1'] = 'max'", '"maximize"']),
        (lambda: Task(SPACE, evaluate, objectives=["f1"]), ["objectives = ['f1']", "must map names to"]),
        (lambda: Task(SPACE, evaluate, objectives={}), ["objectives = {}", "must map names to directions"]),
        (
            lambda: Task(SPACE, evaluate, constraints=narrow),
            ["must be a list of functions", "constraints=[…]"],
        ),
        (lambda: Task(SPACE, evaluate, constraints=["n < 7"]), ["'n < 7'", "a function of the parameters"]),
        (lambda: Task(SPACE, evaluate, default={**POINT, "n": 9}), ["default: n = 9", "from 1 to 8"]),
        (lambda: Task(SPACE, evaluate, points=[POINT, {"x": 0.5, "o": "b"}]), ["points[1]: n is missing"]),
        (lambda: Task(SPACE, evaluate, points=POINT), ["must be a list of configurations", "default={…}"]),
        (
            lambda: Task(SPACE, evaluate, constraints=[narrow], default={**POINT, "n": 7}),
            ["default: constraint narrow (", "test_task.py, line", "'n': 7", "Change one"],
        ),
    ],
)
def test_tasks_that_cannot_be(define: Callable[[], Task], told: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        define()
    for part in told:
        assert part in str(caught.value)


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


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_a_task_in_a_file_beside_the_campaign(tmp_path: Path) -> None:
    write(tmp_path / "mine_beside.py", MODULE)
    task = load_task("mine_beside.py:task", base=tmp_path)
    assert task.objectives == {"value": "minimize"}
    assert task.evaluate(None) == 1.0
    assert load_task("mine_beside.py:task", base=tmp_path) is task
    assert task.source == TaskSource(
        reference="mine_beside.py:task", base=str(tmp_path), path=task.source.path
    )


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "neighbour_of_mine.py", "value = 7")
    write(tmp_path / "sub" / "mine_importing.py", "import neighbour_of_mine" + textwrap.dedent(MODULE))
    assert load_task("sub/mine_importing.py:task", base=tmp_path).name == "mine_importing:evaluate"


def test_a_file_whose_name_another_module_has(tmp_path: Path) -> None:
    write(tmp_path / "json.py", MODULE)
    task = load_task("json.py:task", base=tmp_path)
    assert load_task("json.py:task", base=tmp_path) is task
    assert sys.modules["json"] is json
    other = load_task(f"{write(tmp_path / 'other' / 'json.py', MODULE)}:task", base=tmp_path)
    assert other is not task


def test_a_task_in_a_package_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine_package" / "digits.py", MODULE)
    monkeypatch.chdir(tmp_path)
    assert load_task("mine_package.digits:task", base=Path("/")).name == "mine_package.digits:evaluate"
    with pytest.raises(CampaignError, match=r'no module "digit" in mine_package\. Did you mean "digits"\?'):
        load_task("mine_package.digit:task", base=tmp_path)
    with pytest.raises(
        CampaignError, match=r'no module "mine_packages" in .*\. Did you mean "mine_package"\?'
    ):
        load_task("mine_packages.digits:task", base=tmp_path)


def test_a_function_is_called_with_the_options(tmp_path: Path) -> None:
    write(tmp_path / "mine_options.py", MODULE)
    task = load_task("mine_options.py:make", base=tmp_path, options={"epochs": 3})
    assert task.objectives == {"value": "maximize"}
    assert task.source is not None
    assert task.source.options == {"epochs": 3}
    assert load_task("mine_options.py:anything", base=tmp_path, options={"a": 1}).objectives == {
        "value": "minimize"
    }


@pytest.mark.parametrize(
    ("reference", "options", "kind", "told"),
    [
        ("mine.py", {}, UsageError, ['must be "package.module:name"', 'Write "mine.py:task"']),
        ("mine.py:", {}, UsageError, ['must be "package.module:name"']),
        (":task", {}, UsageError, ['must be "package.module:name"']),
        ("mne.py:task", {}, CampaignError, ["no file", "mne.py", 'Did you mean "mine.py"?']),
        ("xyzzy.py:task", {}, CampaignError, ["no file", "xyzzy.py", "Valid: "]),
        ("mine.py:tsk", {}, CampaignError, ["no 'tsk'", 'Did you mean "task"?']),
        ("mine.py:space", {}, CampaignError, ["is a SearchSpace", "must be an hpo.Task", "Valid: task."]),
        ("mine.py:nothing", {}, CampaignError, ["returned a int", "must return an hpo.Task"]),
        (
            "mine.py:task",
            {"epochs": 3},
            UsageError,
            ["is a Task, and task options are given (epochs)", "Remove them"],
        ),
        ("mine.py:make", {}, UsageError, ['task option "epochs" is missing', "[task_options]"]),
        ("mine.py:make", {"epoch": 3}, UsageError, ['task option "epoch"', 'Did you mean "epochs"?']),
        ("mine.py:evaluate", {}, UsageError, ['task option "trial" is missing', "name a Task"]),
        (
            "mine.py:broken",
            {},
            CampaignError,
            ["the function raised KeyError", "mine.py", "line", "KeyError: 'missing'"],
        ),
        ("mine:task", {}, CampaignError, ['no module "mine"', 'Write "mine.py:task" for the file in']),
    ],
)
def test_references_that_cannot_be(
    tmp_path: Path, reference: str, options: dict[str, object], kind: type[Exception], told: list[str]
) -> None:
    write(tmp_path / "mine.py", MODULE)
    with pytest.raises(kind) as caught:
        load_task(reference, base=tmp_path, options=options)
    assert reference in str(caught.value)
    for part in told:
        assert part in str(caught.value)
    assert caught.value.exit_code == (2 if kind is UsageError else 1)


def test_all_options_that_are_unknown_or_missing_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", MODULE)
    with pytest.raises(UsageError) as caught:
        load_task("mine.py:make", base=tmp_path, options={"epoch": 3, "colour": "red"})
    first, second, third = str(caught.value).splitlines()
    assert first.startswith('task option "epoch": unknown to "mine.py:make". Did you mean "epochs"?')
    assert second.startswith('task option "colour": unknown')
    assert third.startswith('task option "epochs" is missing')


def test_a_module_that_raises_shows_its_own_traceback_only(tmp_path: Path) -> None:
    path = write(tmp_path / "raising.py", "def f():\n    return 1 / 0\nvalue = f()\n")
    with pytest.raises(CampaignError) as caught:
        load_task("raising.py:task", base=tmp_path)
    told = str(caught.value)
    assert f'File "{path}", line 3, in <module>' in told
    assert f'File "{path}", line 2, in f' in told
    assert told.endswith("ZeroDivisionError: division by zero")
    assert "importlib" not in told
    assert "usercode.py" not in told
    write(path, MODULE)
    assert load_task("raising.py:task", base=tmp_path).objectives


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", ["SyntaxError", "line 1"]),
        ("import sys\nsys.exit(3)\n", ["SystemExit: 3", "line 2"]),
        ("import no_such_module_anywhere\n", ["ModuleNotFoundError", "no_such_module_anywhere", "line 1"]),
    ],
)
def test_modules_that_cannot_be_imported(tmp_path: Path, text: str, told: list[str]) -> None:
    write(tmp_path / "wrong.py", text)
    for reference in ("wrong.py:task", "wrong:task"):
        with pytest.raises(CampaignError) as caught:
            load_task(reference, base=tmp_path)
        for part in (reference, *told):
            assert part in str(caught.value)


def test_a_wrong_space_in_a_module_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "empty_range.py", "import hpo\n\nspace = hpo.SearchSpace(x=hpo.Float(1, 0))\n")
    with pytest.raises(UsageError) as caught:
        load_task("empty_range.py:task", base=tmp_path)
    assert str(caught.value) == (
        f'task = "empty_range.py:task": {path}, line 3: '
        "Float(1, 0): low must not be above high. Write Float(0.0, 1.0)."
    )


# --- in another process -------------------------------------------------------------------------------------

ENVIRONMENT = {"PYTHONPATH": str(ROOT)}

CHILD = """
import json, sys
import msgspec
from hpo.task.task import TaskSource
task = msgspec.json.decode(sys.stdin.buffer.read(), type=TaskSource).load()
print(json.dumps([task.evaluate(None), task.objectives, task.default, "torch" in sys.modules]))
"""


def test_a_bundled_campaign_s_sentence_names_the_option_and_no_line_of_ours() -> None:
    with pytest.raises(UsageError) as caught:
        load_task("search_spaces.vit_ab:make_task", base=Path(), options={"data": "/nowhere"})
    assert str(caught.value).startswith(
        """task = "search_spaces.vit_ab:make_task": data = '/nowhere': is not there."""
    )


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("vit_ab", {"data": "x" * 300}),
        ("vit_oialr", {"epochs": [1]}),
        ("bigearthnet", {"data": "/etc/passwd"}),
    ],
)
def test_nor_a_line_of_a_library_s(module: str, options: dict[str, object]) -> None:
    """What raises them lies within contextlib's frames, or in functions that dataclasses wrote."""
    with pytest.raises(UsageError) as caught:
        load_task(f"search_spaces.{module}:make_task", base=Path(), options=options)
    assert ", line " not in str(caught.value)


GIVEN = """\
from pathlib import Path

import hpo
from search_spaces import options as check


def make(data="here", width=1):
    data = Path(data)
    with check.as_usage():
        width = int(width)
    return hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: 1.0)
"""


def test_the_place_named_is_in_the_user_s_own_code(tmp_path: Path) -> None:
    path = write(tmp_path / "given.py", GIVEN)
    with pytest.raises(CampaignError) as caught:
        load_task("given.py:make", base=tmp_path, options={"data": 3})
    first, *traceback = str(caught.value).splitlines()
    assert first == (
        f'task = "given.py:make": the function raised TypeError. Correct {path}, line 8, or what it is given:'
    )
    assert "pathlib" in "".join(traceback)
    with pytest.raises(UsageError) as caught:
        load_task("given.py:make", base=tmp_path, options={"width": "wide"})
    assert str(caught.value).startswith(f'task = "given.py:make": {path}, line 9: invalid literal for int()')


def test_the_place_of_an_installed_task_is_its_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo.task.importing._LIBRARIES", (*usercode._LIBRARIES, f"{tmp_path}/"))
    path = write(tmp_path / "given_installed.py", GIVEN)
    with pytest.raises(CampaignError, match=rf"raised TypeError\. Correct {path}, line 8, or"):
        load_task("given_installed.py:make", base=tmp_path, options={"data": 3})


def test_a_module_that_cannot_be_parsed_is_named_by_its_own_line(tmp_path: Path) -> None:
    write(tmp_path / "unparsed_part.py", "x = (\n")
    write(tmp_path / "whole.py", "import unparsed_part\n")
    with pytest.raises(CampaignError) as caught:
        load_task("whole.py:task", base=tmp_path)
    assert "raised SyntaxError. Correct the code that this points to:" in str(caught.value)
    assert "unparsed_part.py" in str(caught.value).split("SyntaxError", 1)[1]


def in_a_child(source: TaskSource) -> object:
    """What the task gives in a new process that gets only the JSON, from another directory."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=msgspec.json.encode(source).decode(),
        env=ENVIRONMENT,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_task_of_a_file_is_found_by_name_in_a_child(tmp_path: Path) -> None:
    write(tmp_path / "mine_in_child.py", MODULE)
    task = load_task("mine_in_child.py:make", base=tmp_path, options={"epochs": 3})
    source = TaskSource.of(task)
    assert source.pickled is None
    assert in_a_child(source) == [1.0, {"value": "maximize"}, None, False]


def test_a_closure_is_sent_by_value_to_a_child() -> None:
    script = textwrap.dedent(
        """
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
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    source = msgspec.json.decode(done.stdout, type=TaskSource)
    assert source.reference is None
    assert in_a_child(source) == [42, {"value": "minimize"}, {"x": 0.25, "c": False}, False]


def test_a_child_finds_the_modules_that_its_parent_finds(tmp_path: Path) -> None:
    write(tmp_path / "mine_on_the_path.py", MODULE)
    sys.path.insert(0, str(tmp_path))
    task = importlib.import_module("mine_on_the_path").task
    source = TaskSource.of(task)
    assert source.reference is None
    assert in_a_child(source) == [1.0, {"value": "minimize"}, None, False]


def test_a_source_survives_json() -> None:
    for source in (
        TaskSource(reference="a.b:task", base="/somewhere", options={"epochs": 3, "names": ["x"]}),
        TaskSource(pickled=bytes(range(256)), path=("/a", "/b")),
    ):
        assert msgspec.json.decode(msgspec.json.encode(source), type=TaskSource) == source


LOCK = threading.Lock()


def test_what_cannot_be_pickled_is_named_with_what_uses_it() -> None:
    inner = LOCK

    def helper() -> object:
        return inner

    def locked(trial: object) -> float:
        return 1.0 if helper() else 0.0

    with pytest.raises(CampaignError) as caught:
        TaskSource.of(Task(SPACE, locked))
    told = str(caught.value)
    assert "evaluate, which uses helper, which uses inner, which cannot be pickled" in told
    assert "lock" in told
    assert 'isolation = "inline"' in told


def test_a_constraint_that_cannot_be_pickled_is_named() -> None:
    inner = LOCK
    task = Task(SPACE, lambda trial: 0.0, constraints=[lambda params: inner is not None])
    with pytest.raises(
        CampaignError, match=r"<lambda>.*test_task\.py, line \d+\), which uses inner, which cannot"
    ):
        TaskSource.of(task)


def test_damaged_bytes_are_a_campaign_error() -> None:
    with pytest.raises(CampaignError, match=r"cannot be rebuilt in the evaluator process.*isolation"):
        TaskSource(pickled=b"no pickle").load()

"""The documents say what is: their programs run as printed, their campaign files are read, their commands exist."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from cases import cases, nightly
from places import ROOT, TESTS
from programs import called

import hpo
import trainers
from hpo.cli import main
from hpo.cluster.mpirun_command import command, environment, find_mpirun
from hpo.cluster.sbatch import sbatch_options
from hpo.config import reader as config
from hpo.config.reader import Settings
from hpo.errors import UsageError
from hpo.ledger.journals import read_directory
from hpo.parser import make_parser
from search_spaces import digits

FOLDERS = ("hpo", "hpo/views", "trainers", "search_spaces", "jobs", "tests")
DOCUMENTS = {
    name: (ROOT / name).read_text() for name in ("README.md", *(f"{one}/README.md" for one in FOLDERS))
}
TEXT = "\n".join(DOCUMENTS.values())
NAMED = [
    (name, block)
    for text in DOCUMENTS.values()
    for name, block in re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", text, re.DOTALL)
]
BLOCKS = dict(NAMED)
"""The files that documents print, by the name in their first line."""
EXAMPLES = tuple(name for name in BLOCKS if Path(name).name.startswith("test_"))
SLOW = tuple(name for name in EXAMPLES if name.startswith(("nightly/", "ranks/test_")))
COMMANDS = [
    line.split("#")[0].strip()
    for line in re.findall(
        r"^    ((?:bash|hpo|mpirun|srun|python|pytest|torchrun|jq|sbatch) .*)$", TEXT, re.MULTILINE
    )
]
QUOTED = re.findall(r"`((?:bash|hpo|python|pytest|torchrun) [^`]*)`", TEXT)
"""Commands in tables and sentences."""
MODULES = [
    line for line in dict.fromkeys([*COMMANDS, *QUOTED]) if re.search(r"-m search_spaces\.\S+ .*--", line)
]
"""Commands of modules that give options."""
PLACEHOLDERS = {"jobs/NAME.toml", "jobs/NAME_small.toml", "tests/benchmarks/NAME.py"}
HPO = Path(sys.executable).with_name("hpo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With all that is printed, whose campaigns end sooner."""
    for name, content in BLOCKS.items():
        if name not in EXAMPLES:
            (tmp_path / name).write_text(re.sub(r"evaluations( ?= ?)24\b", r"evaluations\g<1>8", content))
    return tmp_path


def run(folder: Path, *line: object) -> subprocess.CompletedProcess[str]:
    return called(*line, cwd=folder, env=environment({**os.environ, "OMP_NUM_THREADS": "1"}))


def campaign(folder: Path, task: str, ranks_per_worker: int) -> dict[str, object]:
    """Evaluate two configurations of ``task`` on one worker; what ``hpo status`` says then."""
    (folder / "own.toml").write_text(
        f'task = "{task}:task"\ndirectory = "runs/own"\nevaluations = 2\n'
        f'layout.ranks_per_worker = {ranks_per_worker}\nevaluation.timeout = "90s"\n'
    )
    run(folder, HPO, "run", "own.toml")
    status: dict[str, object] = json.loads(run(folder, HPO, "status", "runs/own", "--json").stdout)
    return status


# Programs -----------------------------------------------------------------------------------------------------------


TORCHRUN, ALONE = (Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 2), (sys.executable,)


@pytest.mark.parametrize(("start", "other"), cases([(TORCHRUN, ALONE)], nightly=[(ALONE, TORCHRUN)]), ids=str)
def test_examples_train_alone_and_under_torchrun(folder, start, other):
    words = run(folder, *start, "train_alone.py").stdout.split()
    found = dict(zip(words[::2], map(float, words[1::2])))
    assert found["accuracy"] > 0.9 and found["trainable_fraction"] < 1
    _, error = run(folder, *other, "own_loop.py").stdout.split()
    assert float(error) < 0.1


@pytest.mark.parametrize(
    "script", cases(["muon_with_adamw.py", "sharded.py"], nightly=["own_random_numbers.py"])
)
def test_an_example_of_training_runs_without_a_warning(folder, script):
    _, loss = run(folder, sys.executable, "-W", "error", script).stdout.split()
    assert float(loss) < 32


@pytest.mark.parametrize("library", cases(["ddp"], nightly=["accelerate", "lightning"]))
def test_a_script_of_one_s_own_trains_on_two_ranks(folder, library):
    if library != "ddp":
        pytest.importorskip(library, reason=f"{library} is not installed with hpo")
    status = campaign(folder, f"own_{library}.py", ranks_per_worker=2)
    assert status["evaluations"]["completed"] == 2, [
        one.error for one in hpo.Result(folder / "runs/own").individuals
    ]


@nightly
def test_a_loop_of_one_s_own_is_paused_and_goes_on(folder):
    (folder / "own.toml").write_text(
        'task = "my_pauses.py:task"\ndirectory = "runs/own"\nevaluations = 40\nsearch.kind = "random"\n'
        'search.pruner = "halving"\nlayout.ranks_per_worker = 2\nlogging.every = 0\n'
    )
    run(folder, HPO, "run", "own.toml")
    result = hpo.Result(folder / "runs/own")
    assert {one.status for one in result.individuals} == {"completed", "pruned"}
    steps = {identity: sorted(rows["step"]) for identity, rows in result.curves().groupby("id")}
    # Who went on after a pause reported each step once.
    assert all(steps[one.id] == [*range(1, 10)] for one in result.individuals if one.status == "completed")
    again = {one.id for one in read_directory(result.directory) if getattr(one, "resumed_at_step", 0)}
    assert again & {one.id for one in result.individuals if one.status == "completed"}


@nightly
def test_folds_are_evaluated_side_by_side(folder):
    assert campaign(folder, "my_folds.py", ranks_per_worker=2)["best"]["value"] > 0.5
    assert "value_deviation" in hpo.Result(folder / "runs/own").best.metrics


@nightly
def test_images_of_one_s_own_are_written_and_trained_with(folder):
    # As they were written: read back with the shapes and the order that the document gives.
    code = "from own_images import *; from search_spaces.readers.cifar import read_cifar; "
    code += "train = read_cifar('data/own_images').train; "
    code += "assert (train.pixels == images.transpose(0, 3, 1, 2)[:100]).all(); "
    code += "assert (train.classes == classes[:100]).all()"
    run(folder, sys.executable, "-c", code)
    (check, train) = (line for line in COMMANDS if "data/own_images" in line)
    found = run(folder, sys.executable, *shlex.split(check)[1:]).stdout
    assert found == "data/own_images: 100 images to train with, 20 to test with, 10 classes\n"
    small = ("--dim", 24, "--depth", 1, "--heads", 2)
    trained = json.loads(run(folder, sys.executable, *shlex.split(train)[1:], *small).stdout)
    assert trained["options"]["data"] == "data/own_images" and 0 <= trained["value"] <= 1


@nightly
def test_a_campaign_of_one_s_own_trains_with_another_method(folder):
    options = "--method local-sgd --epochs 1 --train-samples 20 --width 4 --weight-decay 0.01"
    found = json.loads(run(folder, sys.executable, "my_images.py", *options.split()).stdout)
    assert found["params"] == {"lr": 0.1, "momentum": 0.9, "width": 4, "world_every": 8}
    assert found["options"]["weight_decay"] == 0.01 and 0 <= found["value"] <= 1
    assert "Of all weights." in run(folder, sys.executable, "my_images.py", "--help").stdout


def test_a_campaign_of_one_s_own_is_searched(folder):
    file = folder / "my_images.toml"
    text, changes = file.read_text(), {"evaluations = 8\n": 2, "epochs = 8\n": 1}
    for line, fewer in changes.items():
        assert line in text
        text = text.replace(line, f"{line.split()[0]} = {fewer}\n")
    file.write_text(text + "train_samples = 20\n")
    assert "completed after" in run(folder, HPO, "try", file.name).stdout
    run(folder, HPO, "run", file.name)
    individuals = hpo.Result(folder / "runs" / "my_images").individuals
    assert [one.status for one in individuals] == ["completed", "completed"]
    assert {tuple(one.params) for one in individuals} == {("lr", "momentum", "width")}


@nightly
def test_an_exported_model_is_used(folder):
    short = ["--epochs", "2", "--train-samples", "64", "--batch-size", "8"]
    run(folder, sys.executable, "-m", "search_spaces.vit_oialr", *short, "--export", "best.safetensors")
    run(folder, sys.executable, "use_best.py")


@nightly
def test_the_default_point_is_tried(folder):
    assert "value = 0." in run(folder, HPO, "try", "my_space.toml").stdout


def test_the_campaign_file_runs_on_islands_of_workers_and_its_results_are_read(folder):
    run(folder, HPO, "run", "my_space.toml", "--ranks", 4)
    status = json.loads(run(folder, HPO, "status", "runs/my_space", "--json").stdout)
    assert status["evaluations"]["completed"] == 8
    assert status["best"]["value"] > 0.8
    own = Path("runs/my_space/evaluations", status["best"]["id"])
    assert (folder / own / "2-ranks").is_dir()
    assert f"{own.name} has its files in {own}\n" in run(folder, HPO, "best", "runs/my_space").stdout
    assert json.loads(run(folder, HPO, "best", "runs/my_space", "--json").stdout)[0]["directory"] == str(own)
    read = run(folder, sys.executable, "read_results.py").stdout
    best = status["best"]
    assert read.startswith(f"{best['id']} {best['value']} {best['params']}\n"), read
    completed = [one for one in hpo.Result(folder / "runs/my_space").individuals if one.value is not None]
    by_operator = Counter(one.operator for one in completed)
    assert {"default", "random"} <= set(by_operator)
    for operator, count in by_operator.items():
        assert re.search(rf"^{operator} +{count} ", read, re.MULTILINE), read
    curves = re.search(r"^id\n(.*?)^Name: value", read, re.MULTILINE | re.DOTALL)[1]
    assert len(curves.splitlines()) == len(completed), read
    assert "too few for the importance" in read
    if shutil.which("jq"):
        for line in COMMANDS:
            if line.startswith("jq "):
                run(folder, "bash", "-c", line.replace("runs/digits", "runs/my_space"))


@pytest.mark.parametrize("ranks", cases([2], nightly=[1, 4]))
def test_the_script_runs_alone_and_under_mpirun(folder, ranks):
    line = [sys.executable, "my_search.py"]
    if ranks > 1:
        line = command(find_mpirun(), "Open MPI 5", ranks, line)
    done = run(folder, *line)
    assert done.stdout.count("done 0.") == ranks


@pytest.mark.parametrize(
    "names",
    cases([[name for name in EXAMPLES if name not in SLOW]], nightly=[[name] for name in SLOW]),
    ids=", ".join,
)
def test_the_example_of_each_harness_passes(tmp_path, names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BLOCKS[name])
    # Beside the tests of their tier, which some of them build on.
    paths = [ROOT, TESTS, *(TESTS / tier for tier in ("fast", "processes", "nightly"))]
    # In pytest's usual place it would first remove what earlier sessions left there: files by the ten thousand. Below
    # ``tmp_path`` the names of sockets would be too long.
    with tempfile.TemporaryDirectory(prefix="examples-") as scratch:
        done = called(
            *(sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "conftest"),
            *("-n", 0, f"--basetemp={scratch}/t", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *names),
            cwd=tmp_path,
            env={**environment(dict(os.environ)), "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
    if skipped := re.findall(r"SKIPPED \[1\] \S+: (.*)", done.stdout):
        pytest.skip(skipped[0])


# Campaign files -----------------------------------------------------------------------------------------------------


def uncommented(text: str) -> str:
    """``text`` with the keys and tables in it that are commented out."""
    return re.sub(r"^# (?=\[\[|\w+ = )", "", text, flags=re.MULTILINE)


def test_every_key_of_a_campaign_file_is_explained(folder):
    path = folder / "all.toml"
    path.write_text(uncommented(BLOCKS["every_key.toml"]))
    settings = config.read_file(path)
    for section in settings, settings.layout, settings.search, settings.evaluation, settings.logging:
        assert section.model_fields_set == {*type(section).model_fields}
    assert settings.island[0].model_fields_set


def test_keys_are_shown_with_their_defaults(folder):
    given = config.read_file(folder / "every_key.toml")
    assert given == Settings(task=given.task, directory=given.directory, evaluations=given.evaluations)


def section_of(document: str, heading: str) -> str:
    return DOCUMENTS[document].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(document: str, section: str) -> set[str]:
    """The names in the first column of a section's tables."""
    text = section_of(document, section)
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {re.match(r"[\w-]+", name)[0] for cell in cells for name in re.findall(r"`(\w[^`]*)`", cell)}


@pytest.mark.parametrize("heading", ["Population-based training", "Phases"])
def test_tables_for_a_campaign_file_are_read_and_fit_the_campaign_that_they_name(tmp_path, heading):
    block = re.search(r"(?:^    .*\n)+", section_of("hpo/README.md", heading), re.MULTILINE)[0]
    path = tmp_path / "c.toml"
    head = 'task = "search_spaces.digits:make_task"\ndirectory = "runs/x"\nevaluations = 1\n'
    path.write_text(head + textwrap.dedent(block))
    settings = config.read_file(path)
    architecture = re.search(r'architecture = "(\w+)"', block)
    options = {**settings.task_options, **({"architecture": architecture[1]} if architecture else {})}
    space = digits.make_task(**options).space
    assert "search_spaces.digits" in block and (settings.search.perturb or settings.phase)
    assert {*(settings.search.perturb or ())} <= set(space.parameters)
    for phase in settings.phase:
        for name, choices in phase.only.items():
            assert set(choices) <= set(space.parameters[name].values()), name


def test_every_search_kind_is_explained():
    kinds = config.SearchSettings.model_fields["kind"].annotation.__args__
    assert rows("hpo/README.md", "Search kinds") - {"kind"} == set(kinds)


def test_known_points_are_read_as_printed(folder):
    done = run(folder, sys.executable, "known_points.py")
    assert "1 entered" in done.stdout and "'lr'" in done.stdout
    path = folder / "known.toml"
    keys = re.search(r"^    known = \[\n.*?^    \]\n", TEXT, re.MULTILINE | re.DOTALL)
    path.write_text('task = "my_space.py:task"\ndirectory = "runs/x"\nevaluations = 1\n' + keys[0])
    assert [one.source for one in config.read_file(path).known] == [
        "runs/earlier",
        "study.db",
        "points.csv",
        "runs/small",
        None,
    ]


def test_every_keyword_of_a_task_and_member_of_a_trial_is_explained():
    keywords = {*inspect.signature(hpo.Task).parameters} - {"space", "evaluate"}
    assert rows("hpo/README.md", "Task") >= keywords
    members = {name for name in dir(hpo.Trial) if not name.startswith("_")}
    assert rows("hpo/README.md", "Trial") - {"trial"} == members - {
        "alone",
        "metrics",
        "remarks",
        "last_report",
    }


# Commands and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [line for line in COMMANDS if "hpo " in line])
def test_commands_are_accepted(line):
    words = shlex.split(line[line.index("hpo ") :])[1:]
    try:
        _, unknown = make_parser().parse_known_args(words)
        assert not unknown or (words[0] == "slurm" and sbatch_options(unknown))
    except (SystemExit, UsageError) as refusal:
        pytest.fail(f"{line}: {refusal}")


def test_the_table_of_commands_is_complete(capsys):
    rows = re.findall(r"^\| `hpo .*?\|", DOCUMENTS["README.md"], re.MULTILINE)
    listed = set(re.findall(r"`hpo (\w+)", "".join(rows)))
    there = set(make_parser()._subparsers._group_actions[0].choices)
    assert listed == there
    for name in there:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        printed = capsys.readouterr().out
        assert (
            ended.value.code == 0 and f"example:\n  hpo {name} " in printed and "75 stopped early" in printed
        )


def test_documents_are_short_and_name_each_program_once():
    assert len(NAMED) == len(BLOCKS), "two programs have one name"
    for name, text in DOCUMENTS.items():
        assert text.count("\n") <= (260 if name == "README.md" else 400), name


def test_scripts_modules_and_options_that_are_named_exist():
    named = set(re.findall(r"\b(?:jobs|search_spaces|tests)/[\w/.]+\.(?:py|sh|sbatch|toml|svg)\b", TEXT))
    assert {name for name in named if not (ROOT / name).exists()} <= PLACEHOLDERS
    for module in set(re.findall(r"python -m ([\w.]+)", TEXT)):
        assert importlib.util.find_spec(module) is not None, module
    for line in [*COMMANDS, *QUOTED]:
        script = re.search(r"(?:python|bash|pytest) .*?\b((?:jobs|tests)/[\w/]+\.(?:py|sh))", line)
        if script and script[1] not in PLACEHOLDERS and not line.startswith("pytest"):
            text = (ROOT / script[1]).read_text()
            missing = [one for one in re.findall(r" (--[\w-]+)", line) if one not in text]
            assert not missing, f"{line}: {script[1]} has no {missing}"


@pytest.mark.parametrize("line", MODULES)
def test_options_of_modules_that_are_shown_are_options_of_theirs(capsys, line):
    """Of the module, the given subcommand, and the given architecture, which has parameters of its own."""
    module, *words = shlex.split(re.search(r"-m (search_spaces\..*)", line)[1])
    subcommand = [word for word in words[:1] if re.fullmatch(r"[a-z-]+", word) and word[0] != "-"]
    chosen = re.findall(r"--architecture \w+|--small", line)
    with pytest.raises(SystemExit, match=r"^0$"):
        importlib.import_module(module).main([*subcommand, *" ".join(chosen).split(), "--help"])
    text = capsys.readouterr().out
    given = set(re.findall(r"(?<= )--[\w-]+", line.partition(module)[2]))
    assert given and not given - set(re.findall(r"--[\w-]+", text)), text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)]+)\)", DOCUMENTS[document]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / document).parent / path if path else ROOT / document
        assert there.exists(), f"{document}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
            assert anchor in anchors, f"{document}: {target}, of {anchors}"


@pytest.mark.parametrize("module", [hpo, trainers])
def test_public_names_that_are_mentioned_exist(module):
    mentioned = set(
        re.findall(rf"\b{module.__name__}\.([A-Z]\w+|[a-z]+_[a-z_]+|train|merged|lars|lamb)\b", TEXT)
    )
    assert mentioned - {"my_space"} <= set(module.__all__)

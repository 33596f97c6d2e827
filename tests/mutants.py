"""Over forty faults, each in a copy of the product: a fault that no test notices shows what the tests do not hold.

Usage: python tests/mutants.py [--only TEXT] [--jobs N]     ten minutes on two cores; exit code 1 where a fault survives

A fault is found by its text, which stands in one module of its package alone, so that modules may move."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from programs import called

ROOT = Path(__file__).parent.parent
COPIED = ("hpo", "trainers", "search_spaces", "tests", "jobs", "pyproject.toml", "README.md")
TIME_LIMIT_S = 600


class Mutant(NamedTuple):
    """A fault: ``right``, text of one module of ``package``, is replaced by ``wrong``."""

    package: str
    right: str
    wrong: str
    tests: str
    """Test files, below ``tests``, that are to notice it, separated by spaces."""


STOPPING = "fast/test_pruning.py"
POPULATION = "fast/test_population.py fast/test_fronts.py"
FRONTS = "fast/test_several_objectives.py"
BREEDING = "processes/test_breeding.py"
SPACE = "fast/test_space.py fast/test_parameters.py"
PROTOCOL = "fast/test_whole_launches.py fast/test_golden_traces.py fast/test_protocol.py"
HEALTH = "processes/test_health.py"
JOURNAL = "processes/test_journal.py"
LEDGER = "fast/test_ledger.py"
JOINT = "fast/test_many_seeds.py"
TOGETHER = "fast/test_joint_launches.py"
COUNTED = "fast/test_counted_journals.py"
ALIVE = "fast/test_alive.py"
COMMANDS = "fast/test_commands.py"
AVERAGING = "processes/test_trainers_communication.py processes/test_trainers_ddp.py"
SCHEDULES = "fast/test_trainers_schedules.py"
LOW_RANK = "fast/test_trainers_lowrank.py processes/test_trainers_decomposition.py"

MUTANTS = (
    # search
    Mutant("hpo/search", "finite and here.place(identity) <", "finite and here.place(identity) <=", STOPPING),
    Mutant("hpo/search", "bisect_left(self.ordered, (math.inf, -1))", "len(self.ordered)", STOPPING),
    Mutant("hpo/search", "del others[here.place(identity)]", "pass", STOPPING),
    Mutant("hpo/search", "rung is None or rung <= running.judged", "rung is None", STOPPING),
    Mutant("hpo/search", "if at_end or at_end is None or running.spared:", "if running.spared:", STOPPING),
    Mutant("hpo/search", "bisect_right(self._ranks, member.rank)", "0", POPULATION),
    Mutant("hpo/search", "self.judged -= 1", "pass", STOPPING),
    Mutant("hpo/search", "and first != second", "", POPULATION),
    Mutant("hpo/search", "distances[order[0]] = distances[order[-1]] = inf", "pass", POPULATION),
    Mutant("hpo/search", "max(5, population.judged // 5)", "len(population.best)", BREEDING),
    Mutant("hpo/search", "len(population.best) < 2", "False", BREEDING),
    Mutant("hpo/search", "min(self._reference[number], at)", "self._reference[number]", FRONTS),
    Mutant("hpo/search", "or objective != self._reported", "", FRONTS),
    Mutant("hpo/search", "min(count - 1, max(0, moved))", "moved", BREEDING),
    Mutant("hpo/search", "worst = latest[-part]", "worst = latest[0]", "processes/test_pbt.py"),
    Mutant("hpo/search", "len(own) / noise + 1 / between", "len(own) / noise", "fast/test_reevaluation.py"),
    # spaces
    Mutant(
        "hpo/space", "parent not in values or values[parent] not in allowed", "parent not in values", SPACE
    ),
    Mutant(
        "hpo/space",
        'msgspec.json.encode(params, order="sorted"), digest',
        "str(params).encode(), digest",
        SPACE,
    ),
    # islands
    Mutant("hpo/islands", "return self._duplicates or key not in self._keys", "return True", PROTOCOL),
    Mutant("hpo/islands", "fresh = max(0, min(most, self.remaining))", "fresh = most", COMMANDS),
    Mutant("hpo/islands", "self._keys.discard(key)", "pass", PROTOCOL),
    Mutant(
        "hpo/islands",
        "completed.losses <= best.losses and",
        "completed.losses < best.losses and",
        "fast/test_status_file.py fast/test_protocol.py fast/test_results.py",
    ),
    Mutant("hpo/islands", "max(_FEWEST, math.ceil(", "min(_FEWEST, math.ceil(", HEALTH),
    Mutant("hpo/islands", "if not moves[hop].copy:", "if True:", "fast/test_migration.py"),
    # journal
    Mutant("hpo/journal", "if line[-11:-3] != b", "if False and line[-11:-3] != b", JOURNAL),
    Mutant("hpo/journal", "os.fsync(self._file)", "pass", JOURNAL + " fast/test_storage.py"),
    Mutant("hpo/journal", "self._part += 1\n", "pass\n", JOURNAL + " fast/test_storage.py"),
    # launches together
    Mutant("hpo/islands", "self.unfinished.update(left.unfinished)", "pass", JOINT),
    Mutant("hpo/islands", "if own.ids[one] else self.unfinished[one].as_contested()", "", TOGETHER),
    Mutant("hpo/islands", "over.get(one, 0) < state.open[one].units", "False", TOGETHER),
    Mutant("hpo/islands", "- self._given_up(target)", "", JOINT),
    Mutant("hpo/islands", "self._held_by_others.pop(launch, set())", "set()", TOGETHER),
    Mutant("hpo/islands", "return holder is None", "return True", TOGETHER),
    Mutant(
        "hpo/islands",
        "self._early_stopping.observe(messages.reports(reports))",
        "pass",
        "fast/test_pruning.py",
    ),
    Mutant("hpo/islands", "if self._suits(island, one)), None)", "), None)", TOGETHER),
    Mutant("hpo/ledger", "state.free - kept", "state.free", TOGETHER),
    # ledger
    Mutant("hpo/ledger", "if self._cost(entry) > max(0, self.free)", "if False", LEDGER),
    Mutant("hpo/ledger", "one in in_place for one in entry.pool", "True for one in entry.pool", LEDGER),
    Mutant("hpo/ledger", "placed = self._folder.read(name) == line", "placed = True", LEDGER),
    Mutant("hpo/ledger", "own = name.launch in state.open and", "own = True or", COUNTED),
    Mutant("hpo/ledger", "self._begun[identity][1] not in self._running", "True", COUNTED),
    Mutant("hpo/ledger", "among is not None and not state.open.keys() <= {*among}", "False", ALIVE),
    Mutant("hpo/ledger", "counts = now - self._own.refreshed_at < REFRESH_S", "counts = True", ALIVE),
    Mutant(
        "hpo/ledger",
        "sorted([self._own.launch, *self.at_work], key=lambda one: (one < launch, one))",
        "[self._own.launch]",
        ALIVE,
    ),
    Mutant("hpo/ledger", "machine.is_running(holder.pid, holder.process_started)", "True", ALIVE),
    # training
    Mutant("trainers", "torch._foreach_div_(gradients, self._channel.size)", "pass", AVERAGING),
    Mutant(
        "trainers",
        "math.sqrt(max(0.0, loss) / first_loss)",
        "max(0.0, loss) / first_loss",
        "processes/test_trainers_local_sgd.py",
    ),
    Mutant("trainers", "self.sync_every = self.sync_every // 2", "pass", "processes/test_trainers_daso.py"),
    Mutant("trainers", "sums.add_(self._residual_of_sums)", "pass", "fast/test_trainers_quantisation.py"),
    Mutant("trainers", "(self.sent + 1) * every // self.count", "every", "fast/test_trainers_cuts.py"),
    Mutant(
        "trainers",
        "self.bad_epochs < method.plateau_patience",
        "self.bad_epochs <= method.plateau_patience",
        "processes/test_trainers_daso.py",
    ),
    Mutant(
        "trainers",
        "return (a + step_a) @ b + a @ step_b",
        "return (a + step_a) @ (b + step_b)",
        "processes/test_trainers_ab.py",
    ),
    Mutant(
        "trainers",
        "self._updates < (step - self._delay) // self._every",
        "self._updates < step // self._every",
        "processes/test_trainers_oialr.py",
    ),
    Mutant("trainers", "values > cutoff * values[0]", "values > cutoff", LOW_RANK),
    Mutant("trainers", "return 1.5 * basis - 0.5 * basis @ (basis.T @ basis)", "return basis", LOW_RANK),
    Mutant(
        "trainers", "lambda factor: factor", "torch.square", "processes/test_trainers_oialr.py " + LOW_RANK
    ),
    Mutant("trainers", "1.0 + math.cos(math.pi * passed)", "1.0 + math.cos(passed)", SCHEDULES),
    Mutant("trainers", "epochs=epochs - self.warmup_epochs, history", "epochs=epochs, history", SCHEDULES),
    Mutant("trainers", "math.ceil(epochs / copies) * copies", "epochs", "fast/test_trainers_assignment.py"),
    Mutant("trainers", "return gain > min_delta", "return gain >= 0", SCHEDULES),
)


def place_of(mutant: Mutant) -> Path:
    """The module that has the text, relative to the root."""
    found = [
        path for path in sorted((ROOT / mutant.package).rglob("*.py")) if mutant.right in path.read_text()
    ]
    if len(found) != 1 or found[0].read_text().count(mutant.right) != 1:
        raise SystemExit(
            f"{mutant.right!r} must stand once below {mutant.package}: correct tests/mutants.py."
        )
    return found[0].relative_to(ROOT)


def notices(folder: Path, tests: list[str]) -> bool:
    """Whether a test fails in the copy of the product in ``folder``."""
    paths = os.pathsep.join([str(folder), str(folder / "tests")])
    files = [f"tests/{one}" for one in tests]
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = called(*line, cwd=folder, env=variables, timeout=TIME_LIMIT_S, returns=None)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if done.returncode and folder == ROOT:
        print(done.stdout[-3000:])
    return done.returncode == 1


def tried(mutant: Mutant) -> bool:
    """Whether the fault is noticed."""
    path = place_of(mutant)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        text = (folder / path).read_text()
        (folder / path).write_text(text.replace(mutant.right, mutant.wrong))
        noticed = notices(folder, mutant.tests.split())
    print(f"{'noticed ' if noticed else 'SURVIVES'}  {path}: {mutant.right} → {mutant.wrong}", flush=True)
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the faults whose module or text has TEXT")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="faults that are tried at once")
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if options.only in f"{place_of(one)}: {one.right}"]
    files = sorted({file for mutant in chosen for file in mutant.tests.split()})
    if notices(ROOT, files):
        print(f"a test fails without a fault: pytest {' '.join(f'tests/{file}' for file in files)}")
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        noticed = sum(pool.map(tried, chosen))
    print(f"{noticed} of {len(chosen)} faults are noticed")
    return int(noticed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())

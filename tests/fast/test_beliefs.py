"""Beliefs in where good values lie: their distributions, first draws, weight, and that they are no part of a space."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy.stats import kstest, truncnorm

import hpo
from hpo.campaign.try_once import _point
from hpo.individual import COMPLETED
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.beliefs import BeliefWeighting
from hpo.search.population import Member
from hpo.space.restricted import restricted

SPACE = hpo.SearchSpace(
    optimizer=hpo.Categorical("sgd", "adam", "nadam", prior="adam", prior_confidence="high"),
    momentum=hpo.Float(0.0, 1.0, prior=0.9, prior_confidence="high", when={"optimizer": "sgd"}),
    lr=hpo.Float(1e-5, 1e-1, log=True, prior=3e-4),
    width=hpo.Ordinal(*(2**n for n in range(8)), prior=16, prior_confidence="high"),
    depth=hpo.Int(1, 9),
)
CENTRE = {"optimizer": "adam", "lr": 3e-4, "width": 16, "depth": 5}


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda: hpo.Float(0, 1, prior=2), ["prior=2", "from 0.0 to 1.0"]),
        (lambda: hpo.Float(0, 1, prior="0.5"), ["prior='0.5'", "a number"]),
        (lambda: hpo.Float(0, 1, prior=math.nan), ["prior=nan", "a number"]),
        (lambda: hpo.Float(0, 1, step=0.25, prior=0.3), ["prior=0.3", "in steps of 0.25"]),
        (lambda: hpo.Int(0, 9, prior=3.5), ["prior=3.5", "a whole number"]),
        (lambda: hpo.Int(0, 9, prior=True), ["prior=True", "a whole number"]),
        (lambda: hpo.Categorical("relu", "elu", prior="rel"), ["prior='rel'", "relu"]),
        (lambda: hpo.Categorical("relu", "elu", prior=["elu"]), ["prior=['elu']", "one of"]),
        (lambda: hpo.Ordinal(1, 2, prior=3), ["Ordinal", "prior=3", "one of 1, 2"]),
        (lambda: hpo.Int(0, 9, prior_confidence="low"), ["prior_confidence='low'", "Add prior"]),
        (lambda: hpo.Categorical(1, 2, prior_confidence="low"), ["Add prior"]),
        (lambda: hpo.Int(0, 9, prior=3, prior_confidence="sure"), ["'sure'", '"low", "medium" or "high"']),
        (lambda: hpo.Int(0, 9, prior=3, prior_confidence=0.5), ["0.5", '"low", "medium" or "high"']),
        (lambda: hpo.Float(0, 1, prior_confidense="low"), ['"prior_confidence"']),
    ],
)
def test_a_belief_that_cannot_be_is_refused(define: Any, words: list[str]) -> None:
    refused(define, *words)


@pytest.mark.parametrize(("confidence", "deviation"), [("low", 0.5), ("medium", 0.25), ("high", 0.125)])
@pytest.mark.parametrize("prior", [0.01, 0.3, 1.0])
def test_numbers_are_truncated_normal_on_their_scale(confidence: Any, deviation: float, prior: float) -> None:
    parameter = hpo.Float(1e-4, 1.0, log=True, prior=10 ** (4 * prior - 4), prior_confidence=confidence)
    expected = truncnorm(-prior / deviation, (1 - prior) / deviation, prior, deviation)
    belief, shares = parameter.belief, np.linspace(0, 1, 50, endpoint=False)
    assert belief is not None
    genes = np.array([belief.quantile(share) for share in shares])
    np.testing.assert_allclose(genes, expected.ppf(shares), atol=1e-8)
    np.testing.assert_allclose(belief.log_density(genes), expected.logpdf(genes), atol=1e-8)


@pytest.mark.parametrize(("confidence", "share"), [("low", 1 / 2), ("medium", 3 / 4), ("high", 7 / 8)])
def test_a_choice_has_its_probability_and_the_others_share_the_rest(confidence: Any, share: float) -> None:
    belief = hpo.Categorical(None, "a", "b", prior=None, prior_confidence=confidence).belief
    assert belief is not None and belief.centre == 0
    drawn = Counter(belief.quantile((n + 0.5) / 1600) for n in range(1600))
    assert [drawn[n] / 1600 for n in range(3)] == pytest.approx([share, (1 - share) / 2, (1 - share) / 2])
    assert np.exp(belief.log_density(np.arange(3))) / 3 == pytest.approx([drawn[n] / 1600 for n in range(3)])


def test_ranks_near_the_believed_are_likelier_the_surer_the_belief() -> None:
    ratios = []
    for confidence in ("low", "medium", "high"):
        belief = hpo.Ordinal(*range(8), prior=4, prior_confidence=confidence).belief  # type: ignore[arg-type]
        assert belief is not None
        densities = belief.log_density(np.arange(8))
        assert densities.argmax() == 4 and densities[3] == pytest.approx(densities[5])
        assert (np.diff(densities[:5]) > 0).all() and np.exp(densities).mean() == pytest.approx(1)
        ratios.append(densities[4] - densities[2])
    # Two of eight ranks away, at half, one and two standard deviations; ranks have a width.
    assert ratios == pytest.approx([0.125, 0.5, 2.0], rel=0.1)


def test_three_in_four_random_configurations_are_drawn_from_the_beliefs_also_among_some_choices() -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1, prior=0.25, prior_confidence="high"), y=hpo.Float(0, 1))
    rng = random.Random(0)
    x, y = np.array([space.sample(rng) for _ in range(4000)]).T
    belief = truncnorm(-2, 6, 0.25, 0.125)
    assert kstest(x, lambda at: 0.75 * belief.cdf(at) + 0.25 * at).pvalue > 0.01
    assert kstest(y, "uniform").pvalue > 0.01
    x, _ = VectorisedGenomes(space).drawn(4000, np.random.default_rng(0), belief=2.0).T
    assert kstest(x, lambda at: 0.75 * belief.cdf(at) + 0.25 * at).pvalue > 0.01
    only = restricted(SPACE, {"optimizer": ["adam", "sgd"]})
    drawn = Counter(only.decode(only.sample(rng))["optimizer"] for _ in range(4000))
    assert drawn.keys() == {"adam", "sgd"} and drawn["adam"] / 4000 == pytest.approx(0.805, abs=0.025)


def test_the_point_of_the_centres_comes_first_unless_there_is_a_default_or_it_is_refused() -> None:
    def task(space: hpo.SearchSpace, **keywords: Any) -> hpo.Task:
        return hpo.Task(space, lambda trial: 0.0, **keywords)

    assert task(SPACE).first == CENTRE and task(SPACE).default is None
    assert _point(task(SPACE, points=[{**CENTRE, "depth": 1}])) == ("the point of the priors", CENTRE)
    default = {**CENTRE, "depth": 2}
    assert _point(task(SPACE, default=default)) == ("the default point", default)
    assert task(SPACE, constraints=[lambda params: params["depth"] != 5]).first is None
    assert task(hpo.SearchSpace(x=hpo.Float(0, 1))).first is None


KINDS = [
    "surrogate",
    "evolution",
    "portfolio",
    "genetic",
    "cmaes",
    "pso",
    "nelder-mead",
    "grid",
    "random",
    "tpe",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_of_any_kind_asks_for_the_centres_first_and_then_draws_near_them(kind: str) -> None:
    space = hpo.SearchSpace({f"x{n}": hpo.Float(0, 1, prior=0.2, prior_confidence="high") for n in range(3)})
    for initial in ("random", "sobol"):
        search = hpo.Search(space, kind=kind, initial=initial)  # type: ignore[arg-type]
        asked = [search.ask() for _ in range(9)]
        assert asked[0].params == {"x0": 0.2, "x1": 0.2, "x2": 0.2}
        genes = np.array([list(one.params.values()) for one in asked[1:]])
        assert kind == "grid" or np.median(np.abs(genes - 0.2)) < 0.2
    search = hpo.Search(space, kind=kind)
    search.enter({"x0": 0.2, "x1": 0.2, "x2": 0.2}, 1.0)
    assert search.ask().operator != "default"
    allowed = hpo.Search(SPACE, kind="random", only={"optimizer": ["sgd"]}).ask()
    assert allowed.params == {**CENTRE, "optimizer": "sgd", "momentum": 0.9}


@pytest.mark.parametrize("objectives", [None, {"a": "minimize", "b": "maximize"}])
def test_models_prefer_what_is_believed_the_less_the_more_is_known(objectives: Any) -> None:
    believed = hpo.SearchSpace(x=hpo.Float(0, 1, prior=0.9, prior_confidence="high"), y=hpo.Float(0, 1))

    def median(space: hpo.SearchSpace, results: int) -> float:
        """Median of x among proposals after results that do not depend on x."""
        search, rng = (
            hpo.Search(space, objectives=objectives, constraints=[lambda params: True]),
            random.Random(0),
        )
        for _ in range(results):
            y = rng.random()
            params = {"x": rng.random(), "y": y}
            search.enter(params, {"a": y, "b": -((y - 0.3) ** 2)} if objectives else y)
        return float(np.median([search.ask().params["x"] for _ in range(12)]))

    assert median(believed, 12) > 0.75
    if objectives is None:
        plain = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
        assert median(believed, 12) > median(plain, 12) + 0.1


def test_the_weight_falls_is_bounded_and_favours_no_choice_for_the_number_of_its_parameters() -> None:
    weighting = BeliefWeighting(SPACE, VectorisedGenomes(SPACE))
    assert SPACE.centre is not None
    worst = SPACE.encode({"optimizer": "nadam", "lr": 0.1, "width": 128, "depth": 5})
    sgd = [SPACE.encode({**CENTRE, "optimizer": "sgd", "momentum": m}) for m in (0.9, 0.1)]
    nadam = SPACE.encode({**CENTRE, "optimizer": "nadam"})
    genomes = np.array([SPACE.centre, worst, *sgd, nadam], dtype=float)

    def raised(losses: list[float], results: int) -> Any:
        members = [
            Member("", tuple(one), (loss,), COMPLETED, rank=loss) for one, loss in zip(genomes, losses)
        ]
        weighting.learn(members, results)
        return weighting(np.ones(5), genomes, gains=False) - 1

    first, worse, near, far, other = at_first = raised([1, 4, 2, 3, 2], 10)
    assert first == pytest.approx(0) and near == pytest.approx(other, rel=0.2)
    assert 0 < near < min(far, worse) and max(far, worse) < 10
    gains = weighting(np.full(5, -2.0), genomes, gains=True)
    assert (
        gains[0] == pytest.approx(-2) and (gains < 0).all() and (gains.argsort() == at_first.argsort()).all()
    )
    np.testing.assert_allclose(raised([1, 4, 2, 3, 2], 40), at_first / 16)
    assert not weighting.refuted
    assert not raised([4, 1, 3, 2, 3], 10).any() and weighting.refuted


def test_a_search_whose_results_refute_the_belief_draws_uniformly_before_it_models() -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1, prior=0.1, prior_confidence="high"), y=hpo.Float(0, 1))
    search, asked = hpo.Search(space), []
    for _ in range(20):
        asked.append(search.ask())
        search.tell(asked[-1], abs(asked[-1].params["x"] - 0.9))  # type: ignore[operator, arg-type]
    assert {one.operator for one in asked[10:]} == {"random"}
    assert np.median([one.params["x"] for one in asked[10:]]) > 0.3


def test_a_changed_belief_is_not_a_changed_space(tmp_path: Any) -> None:
    def campaign(evaluations: int, **prior: Any) -> hpo.Campaign:
        space = hpo.SearchSpace(x=hpo.Float(0, 1, **prior))
        task = hpo.Task(space, lambda trial: trial.params["x"])
        return hpo.Campaign(task, directory=tmp_path / "run", evaluations=evaluations, isolation="inline")

    campaign(3, prior=0.25).run()
    campaign(6, prior=0.75, prior_confidence="high").run()
    result = campaign(8).run()
    assert [result.individuals[place].params["x"] for place in (0, 3)] == [0.25, 0.75]
    assert [one.operator for one in result.individuals].count("default") == 2
    described = SPACE.describe()
    assert "prior" not in str(described) and not SPACE.differences(described)

"""OIALR on Autoformer: each configuration trains, and what it is trained with is the source's."""

from __future__ import annotations

import importlib.util
import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from places import JOBS

pytest.importorskip("transformers")

import hpo
import trainers
from hpo.config.reader import read_file
from search_spaces import autoformer
from search_spaces.building_blocks.data_sets.windows import load_parts
from search_spaces.building_blocks.forecast_task import ForecastTask
from search_spaces.networks.autoformer import correlated
from search_spaces.readers.ett import FEATURES

TINY: dict[str, Any] = {
    "stride": 4,
    "horizon": 4,
    "context": 8,
    "start_token": 4,
    "epochs": 2,
    "batch_size": 8,
    "dim": 16,
    "linear_dim": 16,
    "encoder_layers": 1,
    "heads": 2,
    "moving_average": 3,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Waves of the length of a day and noise, hourly, of ETT's features: 25 windows to train with."""
    lines, rng = [f"date,{','.join(FEATURES)}"], random.Random(0)
    for hour in range(180):
        values = [math.sin(2 * math.pi * (hour + 3 * i) / 24) + 0.1 * rng.gauss(0, 1) for i in range(7)]
        time = datetime(2016, 7, 1) + timedelta(hours=hour)
        lines.append(",".join((str(time), *map(str, values))))
    path = tmp_path_factory.mktemp("data") / "waves.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def tiny(data: str, **changed: Any) -> ForecastTask:
    return autoformer.make_task(**{**TINY, "data": data, **changed})


def network(data: str) -> torch.nn.Module:
    return autoformer.untrained(autoformer.default, **TINY, data=data)


def rates(**in_the_end: float) -> dict[str, float]:
    """Parameters by which ``tiny`` trains at these rates."""
    return {name: rate * TINY["dim"] / autoformer.DIM for name, rate in in_the_end.items()}


def test_random_configurations_train(data: str, tmp_path: Path) -> None:
    task, rng = tiny(data), random.Random(1)
    assert not task.constraints
    configurations = [autoformer.default, autoformer.TUNED]
    configurations += [task.space.decode(task.space.sample(rng)) for _ in range(2)]
    for number, params in enumerate(configurations):
        trial = hpo.Trial.alone(task.space.validate(params), directory=tmp_path / str(number), seed=number)
        found = task.evaluate(trial)
        assert math.isfinite(found["value"]), params
        assert set(found) == {"value", *ForecastTask.recorded}
    diverging = {**autoformer.default, "lr": 1e30, "warmup_lr": 1e30, "min_lr": 1e30}
    found = task.evaluate(hpo.Trial.alone(diverging, directory=tmp_path / "diverging"))
    assert not math.isfinite(found["value"])


def test_the_fitness_is_the_smallest_error_and_the_model_is_the_one_that_had_it(data: str) -> None:
    task = tiny(data, epochs=4)
    # Learns, then is spoilt.
    params = {**autoformer.default, "warmup_epochs": 10, **rates(warmup_lr=3e-3, lr=1.0, min_lr=1.0)}
    model, result = task.fit(params, seed=0, ranks=1, device="cpu")
    errors = [entry["validation_loss"] for entry in result.history]
    assert result.metrics["validation_loss"] == min(errors) < errors[-1]
    scores = trainers.evaluate(
        model,
        load_parts(data, context=8, horizon=4, stride=4).validation,
        metrics={"mse": lambda outputs, targets: ((outputs - targets) ** 2).mean()},
        batch_size=5,
    )
    assert scores["mse"] == pytest.approx(min(errors), abs=1e-5)


@pytest.mark.parametrize(("first", "last"), [(False, False), (True, False), (False, True)])
def test_first_and_last_layer_are_the_embedding_and_the_projection(
    data: str, first: bool, last: bool
) -> None:
    params = {**autoformer.default, "full_rank_first_layer": first, "full_rank_last_layer": last}
    _, result = tiny(data, epochs=1).fit(params, seed=0, ranks=1, device="cpu")
    low = {name.removeprefix("rank/model.") for name in result.metrics if name.startswith("rank/")}
    assert ("encoder.value_embedding.value_projection" in low) == (not first)
    assert ("decoder.seasonality_projection" in low) == (not last)
    attention = {f"self_attn.{name}_proj" for name in "qkv"} | {"self_attn.out_proj", "fc1", "fc2"}
    assert {f"encoder.layers.0.{name}" for name in attention} <= low
    assert {"decoder.value_embedding.value_projection", "decoder.layers.0.trend_projection"} <= low


def test_settings_of_the_source_reach_the_trainer(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    result = trainers.Result(metrics={}, history=(), reason="finished")
    monkeypatch.setattr(trainers, "train", lambda *given, **named: seen.append(named) or result)
    tiny(data, epochs=10).fit(autoformer.default, seed=0, ranks=4, device="cpu")
    (named,) = seen
    assert named["batch_size"] == 2
    assert named["schedule"].warmup_epochs == pytest.approx(2 * 10 / 20)
    method = named["method"]
    assert not method.full_rank_warmup
    assert method.delay == pytest.approx(600 / 21_500)
    assert method.update_every == pytest.approx(400 / 21_500)
    assert named["early_stopping"].patience == 3
    assert named["early_stopping"].restore_best
    outputs, targets = torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 1.0]])
    assert named["loss"](outputs, targets) == 5.0
    assert named["metrics"]["mae"](outputs, targets) == 2.0


def test_the_network_is_of_the_published_size(data: str) -> None:
    """Tables A.4 and A.5; parameters counted from the layers of transformers' model at these widths."""
    options = read_file(JOBS / "autoformer.toml").task_options
    assert {k: options[k] for k in ("start_token", "batch_size", "epochs", "patience", "dropout")} == {
        "start_token": 48, "batch_size": 32, "epochs": 20, "patience": 3, "dropout": 0.05,
    }  # fmt: skip
    model = autoformer.untrained(autoformer.default, **{**options, "data": data, "horizon": 4})
    # Seven values and their two scales, and four features of an hour.
    inputs, norm = 7 * 3 + 4, 2 * 512
    attention = 4 * (512**2 + 512)
    linear = 2 * 512 * 2048 + 2048 + 512
    embedding = inputs * 512 + norm
    encoder = embedding + 2 * (attention + linear + 2 * norm)
    decoder = embedding + 2 * attention + linear + 3 * norm + 3 * 512 * inputs + 512 * inputs + inputs
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == encoder + decoder


def test_a_forecast_is_seasonal_part_and_trend_of_the_points_asked_for(data: str) -> None:
    model = network(data).eval()
    inputs, targets = load_parts(data, context=8, horizon=4, stride=4).test.read_batch(torch.arange(3))
    with torch.no_grad():
        found = model(**inputs)
        # Of transformers' own pieces, and with the real future where zeros were given.
        whole = model.model(
            **inputs,
            past_observed_mask=torch.ones_like(inputs["past_values"]),
            future_values=targets,
            use_cache=False,
        )
    assert found.shape == targets.shape == (3, 4, 7)
    assert torch.equal(found, (whole.trend + whole.last_hidden_state)[:, 4:, :7])


def by_definition(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, delays: int
) -> torch.Tensor:
    """Wu et al., Eqs. 4 to 6, of one sample (points, channels), with loops."""
    points = len(queries)
    agreement = torch.zeros(points, dtype=torch.float64)
    for delay in range(points):
        for point in range(points):
            agreement[delay] += (queries[(point + delay) % points] * keys[point]).mean()
    chosen = agreement.argsort(descending=True)[:delays]
    weights = agreement[chosen].softmax(0)
    result = torch.zeros(points, values.shape[1], dtype=torch.float64)
    for delay, weight in zip(chosen.tolist(), weights, strict=True):
        for point in range(points):
            result[point] += weight * values[(point + delay) % points]
    return result


@pytest.mark.parametrize("seen", [5, 12, 20])
def test_auto_correlation_is_the_published_one(seen: int) -> None:
    queries = torch.randn(3, 12, 4, dtype=torch.float64)
    keys, values = (torch.randn(3, seen, 4, dtype=torch.float64) for _ in range(2))
    zeros = torch.zeros(3, max(0, 12 - seen), 4, dtype=torch.float64)
    found = correlated(queries, keys, values, factor=1, shared=False)
    for sample in range(3):
        full = [torch.cat([part[sample, :12], zeros[sample]]) for part in (keys, values)]
        # ln 12 is 2.48.
        assert torch.allclose(found[sample], by_definition(queries[sample], *full, delays=2))


@pytest.mark.parametrize("training", [False, True])
def test_one_window_is_attended_to_as_by_transformers(data: str, training: bool) -> None:
    from transformers.models.autoformer.modeling_autoformer import AutoformerAttention

    model = network(data).train(training)
    found = [module for module in model.modules() if isinstance(module, AutoformerAttention)]
    assert len(found) == 3
    inputs, others = torch.randn(1, 12, 16), torch.randn(1, 30, 16)
    for layer in found:
        for source in (None, others):
            expected = AutoformerAttention.forward(layer, inputs, key_value_states=source)[0]
            assert torch.allclose(layer(inputs, key_value_states=source)[0], expected, atol=1e-6)


def test_a_forecast_does_not_depend_on_what_else_is_in_the_batch(data: str) -> None:
    torch.manual_seed(0)
    model = network(data).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    inputs, _ = load_parts(data, context=8, horizon=4, stride=4).test.read_batch(torch.arange(5))
    with torch.no_grad():
        together = model(**inputs)
        apart = [model(**{name: part[i : i + 1] for name, part in inputs.items()}) for i in range(5)]
    assert torch.allclose(together, torch.cat(apart), atol=1e-5)


def test_without_transformers_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(autoformer, "find_spec", lambda name: None if name == "transformers" else real(name))
    assert autoformer.main(["--epochs", "1"]) == 2
    assert "bash jobs/setup.sh forecasting" in capsys.readouterr().err

"""``trainers.wrap``: loops of the user's own, as good as ``trainers.train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import groups_in_use, outcomes_of_ranks, run_ranks
from resuming import assert_identical, state_of
from test_trainers_contract import (
    APART,
    BATCH_SIZE,
    EPOCHS,
    METHODS,
    OTHERS,
    PLAIN,
    STEPS_PER_EPOCH,
    Everything,
    adamw,
    of,
    sgd,
    tokens,
    train,
)
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import trainers
from trainers.randomness import derive, seed_generators

TOTAL = EPOCHS * STEPS_PER_EPOCH


def place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def wrapped(net: nn.Module, name: str, per_node: int, **changed: Any) -> trainers.Wrapped:
    settings: dict[str, Any] = {
        "method": METHODS[name],
        "epochs": EPOCHS,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "topology": trainers.Topology(ranks_per_node=per_node),
        "timeout": timedelta(seconds=20),
    }
    optimizer = changed.pop("optimizer", None) or adamw(trained(net))
    return trainers.wrap(net, optimizer, **{**settings, **changed})


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of this rank, as ``trainers.train`` deals them."""
    rank, ranks = place()
    data = tokens(STEPS_PER_EPOCH * BATCH_SIZE * ranks)
    planned = trainers.Disjoint().epoch(
        samples=len(data), epoch=epoch, seed=0, rank=rank, ranks=ranks, batch_size=BATCH_SIZE, accumulate=1
    )
    for step, [batch] in enumerate(planned, start=epoch * STEPS_PER_EPOCH):
        # Dropout draws as in trainers.train.
        seed_generators(derive(0, "step", step, rank))
        yield data[batch.indices]


def loop(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: trainers.Wrapped,
    first: int = 0,
    last: int = TOTAL,
    evaluated: Callable[[], None] = lambda: None,
) -> None:
    """The steps from ``first`` to before ``last``, as someone would write them."""
    for epoch in range(EPOCHS):
        net.train()
        for step, (x, y) in enumerate(batches(epoch), start=epoch * STEPS_PER_EPOCH):
            if first <= step < last:
                optimizer.zero_grad()
                loss = cross_entropy(net(x), y)
                run.backward(loss)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
        if first < (epoch + 1) * STEPS_PER_EPOCH <= last:
            with run.evaluating():
                evaluated()


# As trainers.train


def both(rank: int, name: str, per_node: int) -> tuple[Any, ...]:
    expected, net, scores = Everything(), Everything(), []
    result = train(expected, name, per_node)
    before = groups_in_use() if dist.is_initialized() else 0
    optimizer = adamw(trained(net))
    validation = tokens(20)

    def evaluated() -> None:
        net.eval()
        with torch.no_grad():
            scores.append(cross_entropy(net(validation[:][0]), validation[:][1]).item())

    with wrapped(net, name, per_node, optimizer=optimizer) as run:
        loop(net, optimizer, run, evaluated=evaluated)
        found = run.metrics()
    left = (groups_in_use() if dist.is_initialized() else 0) - before
    hooks = len(net._forward_pre_hooks) + len(optimizer._optimizer_step_pre_hooks)
    recorded = {name: value for name, value in result.metrics.items() if name in found}
    losses = [entry["validation_loss"] for entry in result.history]
    return state_of(expected), recorded, losses, state_of(net), found, scores, left + hooks


@pytest.mark.parametrize(
    ("name", "ranks", "per_node"),
    cases(
        [*((name, 2, 1) for name in PLAIN), ("OIALR over DASO", 1, 1)],
        nightly=[
            *((name, 2, 1) for name in OTHERS),
            *((name, 4, 2) for name in METHODS),
            *((name, 1, 1) for name in METHODS if name not in APART),
        ],
    ),
)
def test_an_own_loop_ends_with_the_bits_of_train(name: str, ranks: int, per_node: int) -> None:
    states = []
    for expected, recorded, losses, state, found, scores, left in of(ranks, both, name, per_node):
        assert_identical(expected, state)
        states.append(state)
        assert scores == pytest.approx(losses, rel=1e-5)
        recorded, found = (
            {name: value for name, value in one.items() if not name.endswith("_s")}
            for one in (recorded, found)
        )
        if isinstance(METHODS[name], trainers.AB):
            # What its evaluations exchange, and their whole weights, are train's.
            recorded, found = (
                {name: one[name] for name in ("synchronisations",)} for one in (recorded, found)
            )
        assert found.items() >= recorded.items() and found
        assert left == 0
    for state in states:
        assert_identical(states[0], state)


def resumed(rank: int, name: str, per_node: int, kind: str, directory: str) -> tuple[Any, ...]:
    make = {"sgd": sgd, "adamw": adamw}[kind]
    whole, file = Everything(), Path(directory, f"{rank}.pt")
    optimizer = make(trained(whole))
    with wrapped(whole, name, per_node, optimizer=optimizer) as run:
        loop(whole, optimizer, run)
    for step in range(TOTAL):
        net = Everything()
        optimizer = make(trained(net))
        run = wrapped(net, name, per_node, optimizer=optimizer)
        if step:
            run.load_state_dict(torch.load(file, weights_only=True))
        loop(net, optimizer, run, step, step + 1)
        torch.save(run.state_dict(), file)
        if step + 1 < TOTAL:
            with pytest.raises(KeyboardInterrupt), run:
                raise KeyboardInterrupt
        run.close()
    return state_of(whole), state_of(net)


@pytest.mark.parametrize(
    ("name", "ranks", "per_node", "kind"),
    cases(
        [(name, 2, 1, "adamw") for name in PLAIN],
        nightly=[*((name, 2, 1, "sgd") for name in METHODS), *((name, 4, 2, "adamw") for name in PLAIN)],
    ),
)
def test_a_run_that_is_saved_after_each_step_ends_with_the_same_bits(
    tmp_path: Path, name: str, ranks: int, per_node: int, kind: str
) -> None:
    for whole, pieces in of(ranks, resumed, name, per_node, kind, str(tmp_path)):
        assert_identical(whole, pieces)


# A GAN: two models, two optimizers


def adversaries() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8))
    critic = nn.Sequential(
        nn.Linear(8, 24), nn.LeakyReLU(), nn.Linear(24, 16), nn.LeakyReLU(), nn.Linear(16, 1)
    )
    return generator, critic


def draw(step: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """This rank's share of a step's real samples and noise."""
    numbers = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(step))
    share = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
    return numbers[0, share] + 1, numbers[1, share]


def adversarial(
    rank: int, method: trainers.Method
) -> tuple[dict[str, Tensor], dict[str, float], list[float]]:
    """The usual loop, in which the second model's loss flows through the first, whose gradients are not wanted."""
    generator, critic = adversaries()
    optimizers = [
        torch.optim.Adam(net.parameters(), lr=1e-2, betas=(0.5, 0.9)) for net in (generator, critic)
    ]
    settings: dict[str, Any] = {
        "method": method,
        "epochs": EPOCHS,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "topology": trainers.Topology(ranks_per_node=1),
    }
    losses: list[float] = []
    with (
        trainers.wrap(generator, optimizers[0], **settings) as of_generator,
        trainers.wrap(critic, optimizers[1], **settings) as of_critic,
    ):
        for step in range(TOTAL):
            real, noise = draw(step, rank, dist.get_world_size())
            fake = generator(noise)
            optimizers[1].zero_grad()
            judged_real, judged_fake = critic(real), critic(fake.detach())
            of_critic.backward(
                binary_cross_entropy_with_logits(judged_real, torch.ones(len(real), 1)), last=False
            )
            of_critic.backward(binary_cross_entropy_with_logits(judged_fake, torch.zeros(len(real), 1)))
            optimizers[1].step()
            optimizers[0].zero_grad()
            loss = binary_cross_entropy_with_logits(critic(fake), torch.ones(len(real), 1))
            of_generator.backward(loss)
            optimizers[0].step()
            losses.append(loss.item())
        sent = of_critic.metrics()
    return {**state_of(generator), **{f"critic.{k}": v for k, v in state_of(critic).items()}}, sent, losses


def test_a_gan_trains_on_two_ranks_as_on_one() -> None:
    (state, sent, _), (other, _, _) = run_ranks(2, adversarial, trainers.DDP())
    assert_identical(state, other)
    ((alone, _, _),) = run_ranks(1, adversarial, trainers.DDP())
    torch.testing.assert_close(state, alone, rtol=1e-3, atol=1e-5)
    # The critic's gradients of the generator's loss are not sent, nor those of the first of two passes.
    # With each gradient goes a flag that tells whether the rank has one.
    numbers = sum(parameter.numel() + 1 for parameter in adversaries()[1].parameters())
    assert sent["bytes_between_nodes"] == 2 * 4 * numbers * TOTAL


# torch.autocast


def in_autocast(rank: int, name: str) -> tuple[dict[str, Tensor], list[tuple[Any, Any, bool]]]:
    """Each step, and each second evaluation, as a whole in autocast."""
    net, evaluated = Everything(), []
    optimizer = adamw(trained(net))
    with wrapped(net, name, 1, optimizer=optimizer) as run:
        for epoch in range(EPOCHS):
            for x, y in batches(epoch):
                with torch.autocast("cpu", torch.bfloat16):
                    optimizer.zero_grad()
                    run.backward(cross_entropy(net(x), y))
                    optimizer.step()
            with run.evaluating():
                seen = state_of(net)
            with torch.autocast("cpu", torch.bfloat16), run.evaluating():
                evaluated.append((seen, state_of(net), net.output(torch.ones(1, 16)).dtype))
        moments = [value for of in optimizer.state.values() for value in of.values() if value.dim()]
        assert {value.dtype for value in moments} == {torch.float32}
    return state_of(net), evaluated


@pytest.mark.parametrize(
    ("name", "ranks"),
    cases([("OIALR", 1), ("AB without groups", 1), ("AB", 2)], nightly=[("DDP PowerSGD", 2), ("DASO", 2)]),
)
def test_in_autocast_a_method_computes_in_the_weights_precision(name: str, ranks: int) -> None:
    for state, evaluated in of(ranks, in_autocast, name):
        assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}
        for basis in (value for key, value in state.items() if key.endswith("_u")):
            torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), rtol=0, atol=1e-5)
        for outside, inside, dtype in evaluated:
            assert_identical(outside, inside)
            assert dtype is torch.bfloat16


# What cannot work


def small(**changed: Any) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    net = nn.Linear(4, 4)
    settings = {"epochs": 2, "steps_per_epoch": 2, **changed}
    return net, torch.optim.SGD(net.parameters(), lr=0.1), settings


def step(net: nn.Module, optimizer: torch.optim.Optimizer, run: trainers.Wrapped) -> None:
    optimizer.zero_grad()
    run.backward(mse_loss(net(torch.ones(2, 4)), torch.zeros(2, 4)))
    optimizer.step()


NET, OPTIMIZER, SETTINGS = small()
DEEPER = nn.Sequential(NET, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epochs": 0}, "epochs = 0"),
        ({"steps_per_epoch": 2.0}, "steps_per_epoch = 2.0"),
        ({"method": trainers.DDP}, "method DDP()"),
        ({"timeout": 10}, "timeout = 10"),
        ({"method": trainers.OIALR(delay=4)}, "OIALR 4"),
        ({"method": trainers.AB()}, "AB"),
        ({"model": DEEPER}, "optimizer: 1.weight"),
        ({"model": nn.Linear(4, 4)}, "optimizer: 2"),
        ({"optimizer": [OPTIMIZER]}, "optimizer ="),
        ({"optimizer": torch.optim.LBFGS(NET.parameters())}, "optimizer: LBFGS"),
        ({"model": nn.Linear(4, 4).requires_grad_(False)}, "model: gradient"),
        ({"model": nn.DataParallel(NET)}, "model: DataParallel .module"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        trainers.wrap(**{"model": NET, "optimizer": OPTIMIZER, **SETTINGS, **changed})
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)
    with trainers.wrap(NET, OPTIMIZER, **SETTINGS), pytest.raises(ValueError, match=r"optimizer: .*wrapped"):
        trainers.wrap(NET, OPTIMIZER, **SETTINGS)


def test_a_loop_that_leaves_a_call_out_is_refused() -> None:
    net, optimizer, settings = small()

    def loss() -> Tensor:
        return mse_loss(net.forward(torch.ones(2, 4)), torch.zeros(2, 4))

    with trainers.wrap(net, optimizer, **settings) as run:
        own = mse_loss(net(torch.ones(2, 4)), torch.zeros(2, 4))
        own.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match=r"run\.backward\(loss\)"):
            optimizer.step()
        run.backward(own, last=False)
        with pytest.raises(RuntimeError, match="last=False"):
            optimizer.step()
        with pytest.raises(RuntimeError, match=r"after optimizer\.step\(\)"):
            run.state_dict()
        for _ in range(4):
            step(net, optimizer, run)
        with pytest.raises(RuntimeError, match="4 steps"):
            step(net, optimizer, run)
    with trainers.wrap(net, optimizer, **settings) as run:
        with pytest.raises(RuntimeError, match=r"run\.begin_step\(\)"):
            run.backward(loss())
        run.begin_step()
        run.backward(loss())
        optimizer.step()
        saved = run.state_dict()
    other = trainers.wrap(net, optimizer, **{**settings, "epochs": 3})
    with other, pytest.raises(ValueError, match="epochs was 2, is 3"):
        other.load_state_dict(saved)


def leaves_steps_out(rank: int, method: trainers.Method) -> float | str:
    net, optimizer, settings = small()
    settings = {**settings, "topology": trainers.Topology(ranks_per_node=1), "method": method}
    with trainers.wrap(net, optimizer, **settings) as run:
        try:
            for number in range(6):
                optimizer.zero_grad()
                run.backward(mse_loss(net(torch.full((2, 4), 1.0 + rank)), torch.full((2, 4), float(number))))
                if number not in (1, 2):  # as a GradScaler does where gradients are not finite
                    optimizer.step()
        except RuntimeError as error:
            return str(error)
    return float(sum(parameter.sum() for parameter in net.parameters()))


def test_steps_are_left_out_where_all_ranks_leave_out_the_same() -> None:
    first, second = run_ranks(2, leaves_steps_out, trainers.DDP())
    assert isinstance(first, float) and first == second
    for words in run_ranks(2, leaves_steps_out, trainers.DASO(warmup_epochs=0, cooldown_epochs=0)):
        assert isinstance(words, str) and "GradScaler" in words


def test_a_scheduler_sets_the_rate_and_the_method_scales_it() -> None:
    """AB's ramp after a decomposition is in the step only: schedulers go on from their own rates."""
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    method = trainers.AB(warmup_steps=2, ab_steps=4, rebound_steps=2, lr_rebound_steps=3, groups=False)
    with trainers.wrap(net, optimizer, method=method, epochs=1, steps_per_epoch=6) as run:
        during: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: during.append(optimizer.param_groups[0]["lr"]))
        for _ in range(6):
            optimizer.zero_grad()
            run.backward(net(torch.ones(2, 16)).square().mean())
            optimizer.step()
            scheduler.step()
    scheduled = [0.5**step for step in range(6)]
    assert during == pytest.approx(
        [scheduled[0], scheduled[1], *(scheduled[2 + i] * (i + 1) / 4 for i in range(4))]
    )
    assert scheduler.get_last_lr() == pytest.approx([0.5**6])


def stopped_early(rank: int, name: str) -> dict[str, Tensor]:
    net = Everything()
    optimizer = adamw(trained(net))
    with wrapped(net, name, 1, optimizer=optimizer) as run:
        loop(net, optimizer, run, last=8)
    return state_of(net)


@pytest.mark.parametrize("name", cases(["local SGD", "AB"], nightly=["DASO", "OIALR"]))
def test_a_loop_that_ends_early_leaves_the_same_model_on_all_ranks(name: str) -> None:
    assert_identical(*run_ranks(2, stopped_early, name))


def one_fails(rank: int) -> str:
    net = Everything()
    optimizer = adamw(trained(net))
    run = wrapped(net, "DDP", 1, optimizer=optimizer, timeout=timedelta(seconds=10))
    with pytest.raises((ZeroDivisionError, trainers.CommunicationError)) as caught, run:
        loop(net, optimizer, run, last=3)
        if rank:
            raise ZeroDivisionError
        loop(net, optimizer, run, first=3)
    return type(caught.value).__name__


def test_a_rank_that_fails_ends_the_others_with_an_error() -> None:
    outcomes = outcomes_of_ranks(2, one_fails)
    assert outcomes[1] == ("returned", "ZeroDivisionError")
    assert outcomes[0] == ("returned", "CommunicationError")


def other_steps(rank: int) -> str:
    net = Everything()
    with pytest.raises(ValueError) as caught:
        wrapped(net, "DDP", 1, steps_per_epoch=STEPS_PER_EPOCH + rank)
    return str(caught.value)


def test_ranks_that_would_take_other_numbers_of_steps_are_refused() -> None:
    assert all(
        "steps_per_epoch = " in text and "not the same on all ranks" in text
        for text in run_ranks(2, other_steps)
    )

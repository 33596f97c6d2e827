"""Six launches on six hosts that share a directory and no network; of half of the campaigns some hosts die."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from namespaces import cut_off_host, need_namespaces
from terminal import HPO, Command, Terminal

from hpo.ledger.alive import STALE_S
from hpo.ledger.opening import state_of

HOSTS, SEEDS, AT_ONCE = 6, 20, 3
LIMIT_S = STALE_S + 240.0


def start(terminal: Terminal, name: str, ranks: int) -> Command:
    line = [*cut_off_host(name), *HPO, "run", "c.toml", "--ranks", str(ranks)]
    return Command(terminal, line, terminal.environment)


def campaign(directory: Path, seed: int) -> Counter[str]:
    """Run a campaign of a random size, and count what happened. Hosts die at random where ``seed`` is odd, and others
    come instead of some."""
    (folder := directory / str(seed)).mkdir()
    rng, terminal, done = random.Random(seed), Terminal(folder), Counter[str]()
    terminal.task(rng.uniform(0.2, 0.8))
    budget = rng.randint(60, 160)
    terminal.campaign(evaluations=budget)
    victims = rng.sample(range(HOSTS), rng.randint(1, 3)) if seed % 2 else []
    dies_at = {victim: time.monotonic() + rng.uniform(1.0, 25.0) for victim in victims}
    commands = {host: start(terminal, f"h{host}", rng.choice([1, 1, 2])) for host in range(HOSTS)}
    killed = []
    while dies_at:
        for victim in [one for one, when in dies_at.items() if when <= time.monotonic()]:
            del dies_at[victim]
            if commands[victim].process.poll() is None:
                killed.append(commands.pop(victim))
                killed[-1].process.kill()
                if rng.random() < 0.5:
                    commands[HOSTS + victim] = start(terminal, f"h{HOSTS + victim}", 1)
        time.sleep(0.1)
    for command in killed:
        command.wait()
    for command in commands.values():
        command.wait(LIMIT_S, returns=0)
    values: dict[str, set[str]] = {}
    for line in (folder / "side.txt").read_text().splitlines():
        values.setdefault(line.split()[0], set()).add(line.split()[1])
    finished = terminal.records("finished")
    recorded = {record["id"]: {str(record["objectives"]["value"])} for record in finished}
    state = state_of(folder / "run")
    assert len(finished) == budget == len(recorded), seed
    # A host that dies with the last evaluation leaves nothing to do, and its launch to be closed by the next start.
    assert len(state.open) <= len(killed) and (state.open or state.final == budget), seed
    assert recorded == values, seed
    again = len(terminal.side()) - budget
    assert again <= 2 * len(killed), seed  # what their workers had evaluated and not yet recorded
    terminal.hpo("check", "run", returns=0)
    done.update(campaigns=1, launches=state.launches, evaluations=budget, killed=len(killed), again=again)
    return done


@pytest.mark.timeout((SEEDS // AT_ONCE + 1) * LIMIT_S)
def test_whichever_hosts_die_the_budget_is_met_exactly(tmp_path: Path) -> None:
    need_namespaces()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = sum(pool.map(partial(campaign, tmp_path), range(SEEDS)), Counter[str]())
    print(dict(done))

"""Campaigns that look like real ones, written in a second: for figures, reports, their benchmarks and their pictures.

Workers of several islands train small networks in invented time: learning curves with early stopping, failures of each
kind, a launch that is killed and one that goes on without a worker, migrations. What is proposed is a random step from
one of the best, so that the best improves as it does in a search.

    python tests/synthetic.py DIR [--evaluations 300] [--objectives 2] [--seed 0]"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from individuals import make_finished, make_started

import hpo
from hpo.individual import COMPLETED, CRASHED, FAILED, FINAL, INVALID, PRUNED, TIMEOUT, Scalar
from hpo.journal import curves, directory
from hpo.journal.files import journal_path
from hpo.journal.records import Ended, Header, Launched, Left, Migrated, Record, Reported, encode
from hpo.ledger.opening import open_ledger

SPACE = hpo.SearchSpace(
    optimizer=hpo.Categorical("SGD", "Adam", "AdamW"),
    lr=hpo.Float(1e-4, 1.0, log=True),
    momentum=hpo.Float(0.0, 0.95, when={"optimizer": "SGD"}),
    weight_decay=hpo.Float(1e-6, 1e-2, log=True),
    depth=hpo.Int(1, 8),
    width=hpo.Ordinal(16, 32, 64, 128, 256),
    dropout=hpo.Float(0.0, 0.6),
    augment=hpo.Categorical("none", "flip", "randaugment"),
)
DEFAULT: dict[str, Scalar] = {
    "optimizer": "Adam", "lr": 1e-3, "weight_decay": 1e-4, "depth": 3, "width": 64, "dropout": 0.2, "augment": "none",
}  # fmt: skip
STEPS, RUNGS, REDUCTION = 24, (4, 12), 2
_BEGAN = 1.79e9
_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of "
    "39.38 GiB of which 1.21 GiB is free."
)


def accuracy(params: dict[str, Scalar]) -> float:
    """Of a whole training, without noise."""
    rate = math.log10(float(params["lr"] or 0))
    ideal = {"SGD": -1.2 - 0.6 * float(params.get("momentum") or 0), "Adam": -2.7, "AdamW": -2.5}
    loss = 0.010 + 0.018 * (rate - ideal[str(params["optimizer"])]) ** 2
    loss += 0.004 * (math.log10(float(params["weight_decay"] or 1)) + 3.6) ** 2
    loss += 0.0022 * (int(params["depth"] or 0) - 5) ** 2
    loss += 0.006 * (math.log2(int(params["width"] or 1)) - 7) ** 2
    loss += 0.12 * (float(params["dropout"] or 0) - 0.12) ** 2
    loss += {"none": 0.022, "flip": 0.012, "randaugment": 0.0}[str(params["augment"])]
    return max(0.1, 0.985 - loss)


def weights(params: dict[str, Scalar]) -> float:
    """Thousands of parameters."""
    return round(int(params["depth"] or 0) * int(params["width"] or 0) ** 2 * 9 / 1000, 1)


@dataclass
class _Job:
    id: str
    params: dict[str, Scalar]
    operator: str
    parents: tuple[str, ...]
    seconds: float
    ends: str
    values: list[float]
    retries: int = 0


@dataclass
class _Campaign:
    path: Path
    rng: random.Random
    objectives: dict[str, str]
    islands: int
    workers: int
    pools: list[list[tuple[float, str, dict[str, Scalar]]]]
    rungs: dict[int, list[float]] = field(default_factory=dict)
    begun: int = 0
    done: int = 0
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    unfinished: list[_Job] = field(default_factory=list)

    def job(self, island: int, worker: int) -> _Job:
        rng, pool = self.rng, self.pools[island]
        sequence, number = self.sequences.get((island, worker), 0), self.begun
        self.sequences[island, worker] = sequence + 1
        self.begun += 1
        identity = f"{island}-{worker}-{sequence}"
        parents: tuple[str, ...] = ()
        if number == 0:
            params, operator = dict(DEFAULT), "default"
        elif number < 30 or rng.random() < 0.06 or len(pool) < 4:
            params, operator = SPACE.decode(SPACE.sample(rng)), "random"
        else:
            top = sorted(pool, reverse=True)[: max(3, len(pool) // 8)]
            first, second = rng.choice(top), rng.choice(top)
            mixed = {
                name: (first if rng.random() < 0.7 else second)[2].get(name) for name in SPACE.parameters
            }
            parents = tuple(dict.fromkeys((first[1], second[1])))
            bred_by = "surrogate" if number < 200 or rng.random() < 0.5 else "evolution"
            params, operator = self._step(mixed), bred_by
        final = accuracy(params) + rng.gauss(0, 0.003)
        pace = rng.uniform(2.5, 6.0)
        values = [
            final - (final - 0.1) * math.exp(-(step + 0.6) / pace) + rng.gauss(0, 0.004)
            for step in range(1, STEPS)
        ]
        size = weights(params)
        seconds = (90 + 2.2 * size**0.62) * rng.lognormvariate(0, 0.25)
        ends = COMPLETED
        if params["optimizer"] == "SGD" and float(params["lr"] or 0) > 0.4:
            ends = INVALID
        elif size > 1900 and rng.random() < 0.6:
            ends, seconds = FAILED, rng.uniform(5, 15)
        elif rng.random() < 0.012:
            ends, seconds = CRASHED, seconds * rng.random()
        elif seconds > 600:
            ends, seconds = TIMEOUT, 600
        return _Job(identity, params, operator, parents, seconds, ends, [*values, final])

    def _step(self, mixed: dict[str, Scalar]) -> dict[str, Scalar]:
        """Another configuration near ``mixed``, in which conditional parameters may be missing."""
        while True:
            fresh = SPACE.decode(SPACE.sample(self.rng))
            found: dict[str, Scalar] = {}
            for name, parameter in SPACE.parameters.items():
                value = mixed.get(name)
                if value is None or self.rng.random() < 0.12:
                    value = fresh.get(name, self.rng.uniform(0.3, 0.95) if name == "momentum" else value)
                elif isinstance(value, float):
                    gene = parameter.encoder()(value) + self.rng.gauss(0, 0.07)
                    value = parameter.decoder()(min(1.0, max(0.0, gene)))
                found[name] = value
            if found["optimizer"] != "SGD":
                del found["momentum"]
            try:
                return dict(SPACE.validate(found))
            except hpo.HpoError:
                continue

    def stops_at(self, job: _Job) -> int | None:
        """The rung at which it is pruned."""
        for rung in RUNGS:
            reached = self.rungs.setdefault(rung, [])
            value = job.values[rung - 1]
            reached.append(value)
            better = sum(other > value for other in reached)
            if len(reached) >= REDUCTION and better >= len(reached) / REDUCTION:
                return rung
        return None


def make(
    path: Path,
    evaluations: int = 300,
    *,
    objectives: int = 1,
    islands: int = 3,
    workers: int = 4,
    seed: int = 0,
    task: str = "search_spaces.digits:task",
) -> Path:
    """The directory ``path`` of a campaign with ``workers`` workers on each of the ``islands``; the first launch is
    killed after 55 % of the evaluations."""
    ways = dict([("accuracy", "maximize"), ("kiloweights", "minimize")][:objectives])
    identity = {"task": task, "options": {"epochs": STEPS}, "space": SPACE.describe(), "objectives": ways}
    directory.write_identity(path, {**identity, "seed": seed, "created": _BEGAN})
    campaign = _Campaign(path, random.Random(seed), ways, islands, workers, [[] for _ in range(islands)])
    now = _Launch(campaign, 1, _BEGAN).run(evaluations, stop=int(evaluations * 0.55))
    _Launch(campaign, 2, now + 5400).run(evaluations)
    open_ledger(path)  # as one of an earlier version
    return path


class _Launch:
    def __init__(self, campaign: _Campaign, number: int, began: float) -> None:
        self.campaign, self.number, self.began = campaign, number, began
        self.places = [(i, w) for i in range(campaign.islands) for w in range(campaign.workers)]
        self.lines: dict[tuple[int, int], list[Record]] = {place: [] for place in self.places}
        self.points: dict[tuple[int, int], list[curves.Point]] = {place: [] for place in self.places}
        self.hops: dict[str, int] = {}

    def run(self, evaluations: int, stop: int | None = None) -> float:
        """Evaluate until ``stop`` are done, None: all; returns the time of the end."""
        campaign, began, places = self.campaign, self.began, self.places
        first = self.lines[0, 0]
        asked = {"evaluations": evaluations, "deadline_s": None, "islands": campaign.islands}
        first.append(Launched(**asked, workers=len(places), ranks_per_worker=4, time=began + 2))
        gone = places[-1] if self.number == 2 and len(places) > 1 else None
        heap = [(began + 4 + campaign.rng.uniform(0, 6), place) for place in places]
        heapq.heapify(heap)
        admitted, running, now = campaign.done, {}, began
        while heap:
            now, place = heapq.heappop(heap)
            if place in running:
                job, since = running.pop(place)
                self._finish(place, job, since, now)
            if stop is not None and campaign.done >= stop:
                break
            if gone == place and now > began + 4000:
                reason = "evaluations fail here that work elsewhere: CUDA error: uncorrectable ECC error encountered"
                first.append(Left(island=place[0], worker=place[1], reason=reason, time=now))
                gone = None
                continue
            if campaign.unfinished:
                job = campaign.unfinished.pop()
            elif admitted < evaluations:
                job = campaign.job(*place)
            else:
                continue
            admitted += 1
            self.lines[place].append(make_started(**_fields(job), time=now))
            ends = now + job.seconds
            if job.ends == COMPLETED and (rung := campaign.stops_at(job)) is not None:
                job.ends, ends = PRUNED, now + job.seconds * rung / STEPS
                job.values = job.values[:rung]
            running[place] = (job, now)
            heapq.heappush(heap, (ends, place))
        if stop is None:
            first.append(Ended(reason="done", exit=0, time=now + 1))
        campaign.unfinished = [job for job, _ in running.values()]
        self._write()
        return now

    def _write(self) -> None:
        for (island, worker), records in self.lines.items():
            where = {"launch": self.number, "island": island, "worker": worker}
            host = f"gpu{(island * self.campaign.workers + worker) // 4 + 10 * self.number:02d}"
            head = Header(version=1, **where, host=host, time=self.began)
            records.sort(key=lambda one: one.at)
            _written(journal_path(self.campaign.path, **where), map(encode, [head, *records]))
            if points := self.points[island, worker]:
                _written(curves.curve_path(self.campaign.path, **where), map(curves.encode, points))

    def _finish(self, place: tuple[int, int], job: _Job, since: float, now: float) -> None:
        campaign, lines, island = self.campaign, self.lines[place], place[0]
        steps = {COMPLETED: STEPS, PRUNED: len(job.values), TIMEOUT: 17, INVALID: 3, CRASHED: 6}.get(
            job.ends, 0
        )
        for step in range(1, steps + 1):
            value = job.values[step - 1] if job.ends != INVALID or step < 3 else math.nan
            when = since + (now - since) * step / max(steps, 1)
            metrics = {"loss": round(-math.log(max(value, 1e-3)), 5)} if math.isfinite(value) else {}
            point = {"id": job.id, "step": step, "value": round(value, 5), "time": when, "began": since}
            self.points[place].append(curves.Point(**point, metrics=metrics))
            if step in RUNGS:
                lines.append(Reported(id=job.id, island=island, step=step, loss=-value, time=when))
        objectives = None
        metrics: dict[str, object] = {"epochs": steps}
        if job.ends == COMPLETED:
            values = {"accuracy": round(job.values[-1], 5), "kiloweights": weights(job.params)}
            objectives = {name: values[name] for name in campaign.objectives}
        if job.ends == PRUNED:
            metrics |= {"pruned_step": steps, "pruned_value": round(job.values[-1], 5)}
        error = {
            FAILED: f'Traceback (most recent call last):\n  File "digits.py", line 88, in evaluate\n{_MEMORY}',
            TIMEOUT: "killed after timeout = 600 s",
            CRASHED: "evaluator of rank 0 ended by signal 11 (SIGSEGV)",
            INVALID: "the task returned accuracy = nan",
        }.get(job.ends)
        end = {
            "started": since,
            "finished": now,
            "status": job.ends,
            "objectives": objectives,
            "error": error,
        }
        lines.append(make_finished(**_fields(job), **end, metrics=metrics, steps=steps or None))
        if job.ends == COMPLETED:
            campaign.pools[island].append((job.values[-1], job.id, job.params))
            if campaign.islands > 1 and campaign.rng.random() < 0.2:
                value, identity, params = max(campaign.pools[island])
                target = (island + 1) % campaign.islands
                if all(one[1] != identity for one in campaign.pools[target]):
                    self.hops[identity] = self.hops.get(identity, 0) + 1
                    campaign.pools[target].append((value, identity, params))
                    move = {"id": identity, "source": island, "target": target, "hop": self.hops[identity]}
                    lines.append(Migrated(**move, copy=True, time=now))
        campaign.done += int(job.ends in FINAL)


def _fields(job: _Job) -> dict[str, object]:
    names = ("id", "params", "operator", "parents", "retries")
    return {name: getattr(job, name) for name in names}


def _written(file: Path, lines: Iterable[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--objectives", type=int, default=1, choices=(1, 2))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.directory, options.evaluations, objectives=options.objectives, seed=options.seed)


if __name__ == "__main__":
    main()

"""One configuration of a task from the command line, alone or under torchrun, without any campaign; and the model
that it, or a campaign, has trained, as a file.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hpo
from hpo import config
from search_spaces.use import MakeNetwork, Trained, export, of_campaign

if TYPE_CHECKING:
    from hpo.individual import Scalar
    from hpo.space import Parameter

MakeTask = Callable[..., hpo.Task]


class Tested(Protocol):
    """A task that measures a chosen configuration on its test part, trained anew with each of ``seeds``."""

    def test(
        self, params: Mapping[str, Scalar], *, seeds: Sequence[int], ranks: int, device: str
    ) -> float: ...


def tests_of(make_task: Callable[..., Tested]) -> Callable[..., float]:
    """A ``test`` for ``main``: that of the task for the keywords of ``make_task``, in the mean of three trainings or of
    those with ``seeds``.
    """

    def test(
        params: Mapping[str, Scalar],
        *,
        ranks: int,
        device: str,
        seeds: Sequence[int] = (0, 1, 2),
        **keywords: object,
    ) -> float:
        return make_task(**keywords).test(params, seeds=seeds, ranks=ranks, device=device)

    return test


def main(
    module: str,
    make_task: MakeTask,
    test: Callable[..., float] | None = None,
    arguments: Sequence[str] | None = None,
    *,
    network: MakeNetwork | None = None,
) -> int:
    """Evaluate one configuration and print, as JSON on rank 0, what it brought; returns the exit code.

    Every parameter of the space is an option, and so is every keyword of ``make_task``. What is not given is
    as in the task's default point, or in the file named by --config. With --config, ``test`` is called too:
    test(params, ranks=…, device=…, **keywords of make_task), and with --test-seeds N also seeds=range(N). With
    ``network``(params, **keywords of make_task), which makes the untrained network, --export writes the trained one
    to a file; its checkpoint is looked for in folders checkpoint-* of the trial's directory. With --campaign it is
    that of a campaign's best, and nothing is trained.
    """
    try:
        return _main(module, make_task, test, network, arguments)
    except hpo.HpoError as error:
        print(f"{module}: {error}", file=sys.stderr)
        return error.exit_code


@dataclass(frozen=True, kw_only=True)
class _Place:
    """This process among those of torchrun, or alone."""

    rank: int
    size: int
    local_rank: int
    device: str


def _main(
    module: str,
    make_task: MakeTask,
    test: Callable[..., float] | None,
    network: MakeNetwork | None,
    arguments: Sequence[str] | None,
) -> int:
    parser = _parser(module, make_task, exports=network is not None)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    merge = bool(given.pop("merge", False))
    if "campaign" in given:
        if "export" not in given or network is None:
            raise hpo.UsageError("--campaign says whose model to write: add --export FILE, and where to")
        trained = of_campaign(given["campaign"], module, given.get("id"))
        export(trained, given["export"], module=module, network=network, merge=merge)
        print(
            json.dumps(
                {"id": trained.id, "params": trained.params, "exported": str(given["export"])}, indent=2
            )
        )
        return 0
    if "test_seeds" in given and "config" not in given:
        raise hpo.UsageError(
            "--test-seeds says how often a configuration is tested: add --config FILE, and which"
        )
    keywords = {name[1:]: value for name, value in given.items() if name[0] == ":"}
    chosen = {name[1:]: value for name, value in given.items() if name[0] == "="}
    if "export" in given and keywords.get("folds"):
        raise hpo.UsageError(
            f"--folds {keywords['folds']} trains a model for each fold, and --export writes one. Add --folds 0"
        )
    task = make_task(**keywords)
    start = _read(given["config"]) if "config" in given else task.default or {}
    params = _completed(task.space, start, chosen)
    with _placed() as place, _directory(given.get("directory"), place) as directory:
        trial = hpo.Trial.alone(
            params,
            directory=directory,
            seed=given["seed"],
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            device=place.device,
        )
        returned = task.evaluate(trial)
        found: dict[str, object] = {"params": params}
        found.update(returned if isinstance(returned, Mapping) else {"value": returned})
        if test is not None and "config" in given:
            repeated = {"seeds": range(given["test_seeds"])} if "test_seeds" in given else {}
            found["test"] = test(params, ranks=place.size, device=place.device, **repeated, **keywords)
        if place.rank == 0:
            if "export" in given and network is not None:
                trained = Trained(params=params, options=keywords, directory=directory)
                export(trained, given["export"], module=module, network=network, merge=merge)
                found["exported"] = str(given["export"])
            print(json.dumps(found, indent=2))
    return 0


def _parser(module: str, make_task: MakeTask, *, exports: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description="Train one configuration, here or on the ranks of torchrun.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a configuration as `hpo best --json` prints it; it is tested, too",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the training (default 0)")
    parser.add_argument(
        "--test-seeds",
        type=_count,
        metavar="N",
        help="with --config: the test is the mean of so many trainings (default: as the task has it)",
    )
    parser.add_argument(
        "--directory", type=Path, help="where the run is saved, for a second call to go on (default: nowhere)"
    )
    if exports:
        model = parser.add_argument_group("the trained model")
        model.add_argument("--export", type=Path, metavar="FILE", help="write it there, by safetensors")
        model.add_argument(
            "--merge", action="store_true", help="low-rank weights multiplied out, as in the ordinary network"
        )
        model.add_argument(
            "--campaign", type=Path, metavar="DIR", help="train nothing: the model of this campaign's best"
        )
        model.add_argument(
            "--id", help="of another individual of the campaign, as `hpo best --top` shows them"
        )
    options = parser.add_argument_group("options of the task")
    for name, keyword in inspect.signature(make_task).parameters.items():
        kind: Callable[[str], object] = _truth if isinstance(keyword.default, bool) else int
        if isinstance(keyword.default, (str, float)):
            kind = type(keyword.default)
        options.add_argument(
            _flag(name), dest=f":{name}", metavar="", type=kind, help=f"(default: {keyword.default})"
        )
    parameters = parser.add_argument_group("parameters")
    for name, parameter in make_task().space.parameters.items():
        described = ", ".join(f"{key} {value}" for key, value in parameter.describe().items())
        parameters.add_argument(
            _flag(name),
            dest=f"={name}",
            metavar="",
            type=_reader(parameter),
            help=described.replace("%", "%%"),
        )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text}: must be true or false")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _reader(parameter: Parameter) -> Callable[[str], Scalar]:
    """From an argument's text to a value of ``parameter``."""

    def read(text: str) -> Scalar:
        choices = getattr(parameter, "choices", None)
        value: object
        if choices is not None:
            value = {**{str(c): c for c in choices}, **{json.dumps(c): c for c in choices}}.get(text, text)
        else:
            try:
                value = json.loads(text)
            except ValueError:
                value = text
        try:
            return parameter.canonical(value)
        except ValueError as rule:
            raise argparse.ArgumentTypeError(f"{text}: must be {rule}") from rule

    return read


def _read(path: Path) -> Mapping[str, Scalar]:
    """The parameters in a file: alone, under "params", or in the first of a list of such."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise hpo.UsageError(f"{path}: {error}. Name a JSON file, as from: hpo best DIR --json") from error
    if isinstance(content, list) and content:
        content = content[0]
    if isinstance(content, dict) and isinstance(content.get("params"), dict):
        content = content["params"]
    if not isinstance(content, dict):
        raise hpo.UsageError(f"{path} holds no configuration. Name a JSON file, as from: hpo best DIR --json")
    return content


def _completed(
    space: hpo.SearchSpace, start: Mapping[str, Scalar], chosen: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """``start`` with ``chosen`` in it; what exists only now is in the middle of its range, or the first
    choice.
    """
    if not chosen:
        return space.validate(start)
    params = space.decode(space.encode({**space.validate(start), **chosen}))
    # Complains of a chosen parameter that does not exist beside the others.
    return space.validate({**params, **chosen})


@contextmanager
def _placed() -> Iterator[_Place]:
    """Join the group of torchrun, if it started this process."""
    import torch
    import torch.distributed as dist

    if not dist.is_torchelastic_launched():
        yield _Place(rank=0, size=1, local_rank=0, device="cuda:0" if torch.cuda.is_available() else "cpu")
        return
    # Its functions have the group as a default argument: imported later, by the first optimizer, they would
    # keep it and its threads alive, which may abort the process as it exits.
    import torch.distributed.nn.functional

    local_rank = dist.get_node_local_rank()
    # All ranks must take the same backend, and NCCL refuses two ranks on one device.
    neighbours = int(config.environment()["LOCAL_WORLD_SIZE"])
    device = f"cuda:{local_rank}" if neighbours <= torch.cuda.device_count() else "cpu"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device != "cpu" else "gloo", timeout=timedelta(minutes=10)
    )
    try:
        yield _Place(rank=dist.get_rank(), size=dist.get_world_size(), local_rank=local_rank, device=device)
    finally:
        dist.destroy_process_group()


@contextmanager
def _directory(named: Path | None, place: _Place) -> Iterator[Path]:
    """The named directory, or one of rank 0's that all ranks use and that is gone afterwards."""
    if named is not None:
        yield named
        return
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory(prefix="alone-") as own:
        if place.size == 1:
            yield Path(own)
            return
        length = 256
        name = torch.frombuffer(bytearray(own.encode().ljust(length, b"\0")), dtype=torch.uint8)
        dist.broadcast(name, src=0)
        yield Path(bytes(name.tolist()).rstrip(b"\0").decode())
        # Rank 0 must not remove what another rank still writes into.
        dist.barrier()

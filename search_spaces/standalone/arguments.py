"""The command line of ``command_line.main``: what it reads, before anything is trained."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol, Union, get_args, get_origin

import hpo
from hpo.spelling import unrecognized
from search_spaces.options import Options
from search_spaces.standalone.trained_models import Trained, check_module, names_no_module, of_campaign

if TYPE_CHECKING:
    from hpo.individual import Scalar
    from hpo.space.space import Parameter


class MakeTask(Protocol):
    """``make_task`` of a campaign's module, and the model of its options."""

    @property
    def options(self) -> type[Options]: ...

    def __call__(self, **options: Any) -> hpo.Task: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command asks for.

    ``options``: keywords of make_task, of the file or the campaign and as given; ``start``: parameters of these, None:
    those of the task's default; ``rest``: arguments that the task's parameters read. ``id``: the campaign's individual
    that has these parameters. ``trained``: the one whose model is written, nothing being trained.
    """

    options: Mapping[str, Any]
    start: Mapping[str, Scalar] | None = None
    id: str | None = None
    rest: Sequence[str] = ()
    seed: int = 0
    test_seeds: int | None = None
    directory: Path | None = None
    export: Path | None = None
    merge: bool = False
    trained: Trained | None = field(default=None)


class _Parser(argparse.ArgumentParser):
    """One whose mistakes are UsageErrors: a sentence, without the list of all options before it."""

    def error(self, message: str) -> NoReturn:
        sentence = message if message.endswith("?") else f"{message}."
        raise hpo.UsageError(f"{sentence} `{self.prog} --help` lists what there is.")


def read(
    module: str, make_task: MakeTask, arguments: Sequence[str] | None = None, *, exports: bool
) -> Request:
    """What ``arguments`` ask for, but for the parameters, which the task of its options has to read.

    UsageError for what cannot be; SystemExit after --help.
    """
    parser = _general(module, make_task, exports=exports)
    found, rest = parser.parse_known_args(arguments)
    given_values = {name: value for name, value in vars(found).items() if value is not None}
    options = {name[1:]: given_values.pop(name) for name in list(given_values) if name[0] == ":"}
    # A flag that is not given is False.
    given = {name: value for name, value in given_values.items() if value is not False}
    if {"-h", "--help"} & set(rest):
        _help(parser, make_task, options)
    _check_together(given, [*(_flag(name) for name in options), *(one for one in rest if one[:2] == "--")])
    start: Mapping[str, Scalar] | None = None
    known: Mapping[str, Any] = {}
    trained: Trained | None = None
    source = given.get("campaign") or given.get("config")
    if "campaign" in given:
        trained = of_campaign(given["campaign"], module, given.get("id"))
        start, known = trained.params, trained.options
    elif "config" in given:
        start, known = _configuration(given["config"], module)
    names = list(make_task.options.model_fields)
    strange = [name for name in known if name not in names]
    if strange:
        raise hpo.UsageError(
            f"{source} has the option {', '.join(strange)}, which {module} does not know: it knows "
            f"{', '.join(names)}. It may be of another version."
        )
    return Request(
        options={**known, **options},
        start=start,
        id=None if trained is None else trained.id,
        rest=rest,
        seed=given.get("seed", 0),
        test_seeds=given.get("test_seeds"),
        directory=given.get("directory"),
        export=given.get("export"),
        merge="merge" in given,
        trained=trained if "export" in given and "anew" not in given else None,
    )


def _check_together(given: Mapping[str, Any], about_training: Sequence[str]) -> None:
    """UsageError for arguments that mean nothing without others, or beside them."""
    for name, needed, why in (
        ("merge", ("export",), "says how a model is written: add --export FILE, and where to"),
        ("id", ("campaign",), "names an individual: add --campaign DIR, and of which"),
        (
            "test_seeds",
            ("config", "campaign"),
            "says how often a configuration is tested: add --config FILE, and which",
        ),
        ("anew", ("campaign",), "trains a campaign's configuration again: add --campaign DIR, and of which"),
    ):
        if name in given and not any(one in given for one in needed):
            raise hpo.UsageError(f"{_flag(name)} {why}")
    if "config" in given and "campaign" in given:
        raise hpo.UsageError("--config and --campaign both name a configuration. Leave one of them out.")
    if "campaign" in given and "export" in given and "anew" not in given:
        unused = [_flag(name) for name in ("seed", "test_seeds", "directory") if name in given]
        unused += about_training
        if unused:
            raise hpo.UsageError(
                f"{unused[0].split('=')[0]} says how to train, and --campaign with --export writes the model that the "
                "campaign has trained. Leave it out, or add --anew to train again."
            )


def parameters(
    module: str, make_task: MakeTask, task: hpo.Task, request: Request, *, options: Mapping[str, Any]
) -> dict[str, Scalar]:
    """The configuration: the parameters that are given, the others as in ``request.start``. UsageError for what the
    space or a constraint refuses.
    """
    parser = _Parser(prog=f"python -m {module}", add_help=False, allow_abbrev=False)
    _add_parameters(parser, task.space)
    found, unknown = parser.parse_known_args(request.rest)
    if unknown:
        whole = _general(module, make_task, exports=True)
        _add_parameters(whole, task.space)
        parser.error(unrecognized(unknown, whole))
    chosen = {name[1:]: value for name, value in vars(found).items() if value is not None}
    start = request.start if request.start is not None else task.default or {}
    params = _completed(task.space, start, chosen)
    for constraint in task.constraints:
        if not constraint(dict(params)):
            rule = " ".join((constraint.__doc__ or "").split())
            raise hpo.UsageError(
                f"constraint {getattr(constraint, '__name__', constraint)} refuses {params}: {rule} Change one of them"
                f"{_given(options)}."
            )
    return params


def _given(options: Mapping[str, Any]) -> str:
    return f", or of {', '.join(f'{name} = {value!r}' for name, value in options.items())}" if options else ""


def all_options(make_task: MakeTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` and the defaults of those that are not given."""
    fields = make_task.options.model_fields.items()
    return {**{name: field.default for name, field in fields}, **options}


# The parser


def _general(module: str, make_task: MakeTask, *, exports: bool) -> _Parser:
    """All but the parameters, which the task knows that is made with the options."""
    parser = _Parser(
        prog=f"python -m {module}",
        description="Train one configuration, here or on the ranks of torchrun.",
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a configuration as `hpo best --json` prints it, with options of the task if it names them; it is tested, "
        "too",
    )
    parser.add_argument(
        "--campaign",
        type=Path,
        metavar="DIR",
        help="that of this campaign's best, with the campaign's options; likewise",
    )
    parser.add_argument("--id", help="of another individual of the campaign, as `hpo best --top` shows them")
    parser.add_argument("--seed", type=_whole, help="of the training (default 0)")
    parser.add_argument(
        "--test-seeds",
        type=_count,
        metavar="N",
        help="with --config or --campaign: the test is the mean of this many trainings (default: as the task has it)",
    )
    parser.add_argument(
        "--directory", type=Path, help="where the run is saved, for a second call to go on (default: nowhere)"
    )
    if exports:
        model = parser.add_argument_group("the trained model")
        model.add_argument(
            "--export",
            type=Path,
            metavar="FILE",
            help="write it there, by safetensors; with --campaign that which the campaign has trained",
        )
        model.add_argument(
            "--merge", action="store_true", help="low-rank weights multiplied out, as in the ordinary network"
        )
        model.add_argument(
            "--anew", action="store_true", help="with --campaign: train again, as the options say"
        )
    options = parser.add_argument_group("options of the task")
    described = make_task.options
    for name, kind in described.kinds().items():
        default = described.model_fields[name].default
        flag: dict[str, Any] = (
            {"nargs": "?", "const": True} if kind is bool else {}
        )  # --small, or --small false
        options.add_argument(
            _flag(name),
            dest=f":{name}",
            metavar=_METAVARS[_base(kind)],
            type=_READERS[_base(kind)],
            help=f"{described.describe(name)} (default: {default})".strip().replace("%", "%%"),
            **flag,
        )
    return parser


def _help(parser: _Parser, make_task: MakeTask, options: Mapping[str, Any]) -> NoReturn:
    parser.add_argument("-h", "--help", action="help", help="show this")
    try:
        _add_parameters(parser, make_task(**options).space)
    except hpo.UsageError as error:
        parser.epilog = f"Parameters are listed for options with which there is a task. {error}".replace(
            "%", "%%"
        )
    parser.print_help()
    sys.exit(0)


def _add_parameters(parser: _Parser, space: hpo.SearchSpace) -> None:
    parameters = parser.add_argument_group("parameters")
    for name, parameter in space.parameters.items():
        described = ", ".join(f"{key} {value}" for key, value in parameter.describe().items())
        parameters.add_argument(
            _flag(name),
            dest=f"={name}",
            metavar=_metavar(parameter),
            type=_reader(parameter),
            help=described.replace("%", "%%"),
        )


def _metavar(parameter: Parameter) -> str:
    if hasattr(parameter, "choices"):
        return "VALUE"
    return _METAVARS[int] if isinstance(parameter, hpo.Int) else _METAVARS[float]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _base(annotation: Any) -> type:
    """bool, float, int or str: what a value of an option with this annotation is; None of an optional one aside."""
    if get_origin(annotation) is Annotated:
        return _base(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _base(next(one for one in get_args(annotation) if one is not type(None)))
    return annotation if annotation in (bool, float, int) else str


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a number") from None


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


# By what ``_base`` says of an option: from an argument's text to a value, and what help shows in its place.
_READERS: dict[type, Callable[[str], object]] = {bool: _truth, float: _number, int: _whole, str: str}
_METAVARS: dict[type, str] = {bool: "true|false", float: "NUMBER", int: "N", str: "TEXT"}


def _reader(parameter: Parameter) -> Callable[[str], Scalar]:
    """From an argument's text to a value of ``parameter``."""

    def read(text: str) -> Scalar:
        value: object
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        choices = getattr(parameter, "choices", ())
        value = {**{str(c): c for c in choices}, **{json.dumps(c): c for c in choices}}.get(text, value)
        try:
            return parameter.canonical(value)
        except ValueError as rule:
            raise argparse.ArgumentTypeError(f"{text}: must be {rule}") from rule

    return read


# Configurations


def _configuration(path: Path, module: str) -> tuple[Mapping[str, Scalar], Mapping[str, Any]]:
    """Parameters and options in a file: the former alone, or both under their names, or in the first of a list of
    such.
    """
    remedy = "Name a JSON file, as from: hpo best DIR --json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise hpo.UsageError(f"{path}: {error}. {remedy}") from error
    if isinstance(content, list) and content:
        content = content[0]
    if not isinstance(content, dict):
        raise hpo.UsageError(f"{path} holds no configuration. {remedy}")
    params = content.get("params")
    if not isinstance(params, dict):
        return content, {}
    task = content.get("task")
    if isinstance(task, str) and not names_no_module(task):
        check_module(task, module, f"{path} is of")
    options = content.get("options")
    return params, options if isinstance(options, dict) else {}


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

"""The command line of ``command_line.main``: what it reads, before anything is trained."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliUnknownArgs,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError

import hpo
from hpo.spelling import suggestion
from search_spaces.options import Count, Options, rule_of, wrong
from search_spaces.standalone.trained_models import Trained, check_module, names_no_module, of_campaign

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar
    from hpo.space.space import Parameter


class MakeTask(Protocol):
    """``make_task`` of a campaign's module, with the model of its options, its test and its untrained network."""

    __module__: str

    @property
    def options(self) -> type[Options]: ...

    def __call__(self, **options: Any) -> hpo.Task: ...

    def tests(self, params: Mapping[str, Scalar], **keywords: Any) -> list[dict[str, float]]: ...

    def untrained(self, params: Mapping[str, Scalar], **keywords: Any) -> nn.Module: ...


class Command(BaseSettings):
    """Train one configuration, here or on the ranks of torchrun."""

    model_config = SettingsConfigDict(
        cli_avoid_json=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_ignore_unknown_args=True,
        cli_implicit_flags=True,
        cli_kebab_case=True,
        extra="forbid",
        protected_namespaces=(),
        use_attribute_docstrings=True,
        validate_default=False,  # a parameter without a default may be absent from the configuration
    )

    config: Path | None = None
    """A configuration as `hpo best --json` prints it, with options of the task if it names them; it is tested, too."""
    campaign: Path | None = None
    """Directory of a campaign: its best configuration and its options; tested, too."""
    id: str | None = None
    """Another individual of the campaign, as `hpo best --top` shows them."""
    seed: int = 0
    """Seed of the training."""
    test_seeds: Count | None = None
    """With --config or --campaign: the test is the mean of this many trainings; left out: as the task has it."""
    directory: Path | None = None
    """Where the run is saved, for a second call to continue it; left out: nowhere."""
    export: Path | None = None
    """Write the trained model to this file, by safetensors; with --campaign the model that the campaign has trained."""
    merge: bool = False
    """With --export: low-rank weights multiplied out, as in the ordinary network."""
    anew: bool = False
    """With --campaign and --export: train again, as the options say."""
    rest: CliUnknownArgs

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments alone: a variable of the environment called SEED is no option."""
        return (init_settings,)

    @property
    def trains(self) -> bool:
        """Whether a configuration is trained: else the model that a campaign has trained is written."""
        return self.campaign is None or self.export is None or self.anew


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command asks for.

    ``options``: keywords of make_task, of the file or the campaign and as given; ``start``: parameters of these, None:
    those of the task's default; ``trained``: the campaign's individual that has these parameters.
    """

    command: Command
    options: Mapping[str, Any]
    start: Mapping[str, Scalar] | None = None
    trained: Trained | None = None


def read(make_task: MakeTask, arguments: Sequence[str] | None = None) -> Request:
    """What ``arguments`` ask for, but for the parameters, which the task of its options has to read.

    UsageError for what cannot be; SystemExit after --help.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    module, model = make_task.__module__, _with_options(make_task)
    helps = {"-h", "--help"}
    command = _parsed(model, [one for one in given if one not in helps])
    names = [name for name in make_task.options.model_fields if name in command.model_fields_set]
    options = {name: getattr(command, name) for name in names}
    if helps & set(given):
        _help(model, make_task, options)
    _check_together(
        command, [_flag(name) for name in names] + [one for one in command.rest if one[:2] == "--"]
    )
    start: Mapping[str, Scalar] | None = None
    known: Mapping[str, Any] = {}
    trained: Trained | None = None
    if command.campaign is not None:
        trained = of_campaign(command.campaign, module, command.id)
        start, known = trained.params, trained.options
    elif command.config is not None:
        start, known = _configuration(command.config, module)
    strange = [name for name in known if name not in make_task.options.model_fields]
    if strange:
        raise hpo.UsageError(
            f"{command.campaign or command.config} has the option {', '.join(strange)}, which {module} does not know: "
            f"it knows {', '.join(make_task.options.model_fields)}. It may be of another version."
        )
    return Request(command=command, options={**known, **options}, start=start, trained=trained)


def _check_together(command: Command, about_training: Sequence[str]) -> None:
    """UsageError for arguments that mean nothing without others, or beside them."""
    given = {name for name in command.model_fields_set if getattr(command, name) not in (None, False)}
    for name, needed, why in (
        ("merge", {"export"}, "says how a model is written: add --export FILE, and where to"),
        ("id", {"campaign"}, "names an individual: add --campaign DIR, and of which"),
        (
            "test_seeds",
            {"config", "campaign"},
            "says how often a configuration is tested: add --config FILE, and which",
        ),
        ("anew", {"campaign"}, "trains a campaign's configuration again: add --campaign DIR, and of which"),
    ):
        if name in given and not needed & given:
            raise hpo.UsageError(f"{_flag(name)} {why}")
    if {"config", "campaign"} <= given:
        raise hpo.UsageError("--config and --campaign both name a configuration. Leave one of them out.")
    if not command.trains:
        unused = [
            _flag(name) for name in ("seed", "test_seeds", "directory") if name in command.model_fields_set
        ]
        unused += about_training
        if unused:
            raise hpo.UsageError(
                f"{unused[0].split('=')[0]} says how to train, and --campaign with --export writes the model that the "
                "campaign has trained. Leave it out, or add --anew to train again."
            )


def parameters(task: hpo.Task, request: Request) -> dict[str, Scalar]:
    """The configuration: the parameters that are given, the others as in ``request.start``. UsageError for what the
    space or a constraint refuses.
    """
    found = _parsed(_with_parameters(type(request.command), task), request.command.rest)
    if found.rest:
        flag = next((word.split("=")[0] for word in found.rest if word.startswith("-")), found.rest[0])
        valid = [_flag(name) for name in type(found).model_fields if name != "rest"]
        raise hpo.UsageError(f"unrecognized arguments: {' '.join(found.rest)}. {suggestion(flag, valid)}")
    chosen = {name: getattr(found, name) for name in task.space.parameters if name in found.model_fields_set}
    start = request.start if request.start is not None else task.default or {}
    params = _completed(task.space, start, chosen)
    for constraint in task.constraints:
        if not constraint(dict(params)):
            rule = " ".join((constraint.__doc__ or "").split())
            raise hpo.UsageError(
                f"constraint {getattr(constraint, '__name__', constraint)} refuses {params}: {rule} Change one of them"
                f"{_given(request.options)}."
            )
    return params


def _given(options: Mapping[str, Any]) -> str:
    return f", or of {', '.join(f'{name} = {value!r}' for name, value in options.items())}" if options else ""


def all_options(make_task: MakeTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` and the defaults of those that are not given."""
    fields = make_task.options.model_fields.items()
    return {**{name: field.default for name, field in fields}, **options}


# The parser


def _with_options(make_task: MakeTask) -> type[Command]:
    """All arguments but the parameters, which the task knows that is made with the options."""
    described = make_task.options
    fields: dict[str, Any] = {
        name: (kind, Field(described.model_fields[name].default, description=described.describe(name)))
        for name, kind in described.kinds().items()
    }
    model = create_model(Command.__name__, __base__=Command, __doc__=Command.__doc__, **fields)
    model.model_config["cli_prog_name"] = f"python -m {make_task.__module__}"
    return model


def _with_parameters(model: type[Command], task: hpo.Task) -> type[Command]:
    start = task.default or {}
    fields: dict[str, Any] = {}
    for name, parameter in task.space.parameters.items():
        described = ", ".join(f"{key} {value}" for key, value in parameter.describe().items())
        fields[name] = (_kind(parameter), Field(start.get(name), description=f"parameter: {described}"))
    with warnings.catch_warnings():
        # A parameter called "copy" hides a method of the model, which nobody calls.
        warnings.simplefilter("ignore", UserWarning)
        return create_model(Command.__name__, __base__=model, __doc__=Command.__doc__, **fields)


def _kind(parameter: Parameter) -> Any:
    read = BeforeValidator(_reader(parameter))
    if hasattr(parameter, "choices"):
        return Annotated[Any, read]
    return Annotated[int, read] if isinstance(parameter, hpo.Int) else Annotated[float, read]


def _parsed(model: type[Command], arguments: Sequence[str]) -> Command:
    """The values of ``arguments``; UsageError with a line for each value that is not allowed."""
    try:
        return CliApp.run(model, cli_args=list(arguments), cli_exit_on_error=False)
    except SettingsError as error:
        sentence = str(error).removeprefix("error parsing CLI: ")
        program = model.model_config["cli_prog_name"]
        raise hpo.UsageError(f"{sentence}. `{program} --help` lists what there is.") from None
    except ValidationError as error:
        refusals = []
        for found in error.errors():
            name = str(found["loc"][0])
            field = model.model_fields[name]
            marked = Annotated.__class_getitem__((field.annotation, *field.metadata, ""))  # type: ignore[attr-defined]
            rule = str(found.get("ctx", {}).get("error", "")) or rule_of(marked)
            value = _scalar(found["input"])
            # A rule with a remedy of its own: 'must be one of "sgd", "adam". Did you mean "adam"?'
            complete = rule[-1] in ".?"
            refusals.append(
                f"{name} = {value!r}: must be {rule}" if complete else str(wrong(name, value, rule))
            )
        raise hpo.UsageError("\n".join(refusals)) from None


def _help(model: type[Command], make_task: MakeTask, options: Mapping[str, Any]) -> NoReturn:
    try:
        model = _with_parameters(model, make_task(**options))
    except hpo.UsageError as error:
        print(f"Parameters are listed for options with which there is a task. {error}\n")
    CliApp.run(model, cli_args=["--help"])
    sys.exit(0)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _reader(parameter: Parameter) -> Callable[[object], Scalar]:
    """From an argument's text to a value of ``parameter``."""

    def read(given: object) -> Scalar:
        text = str(given)
        choices = getattr(parameter, "choices", ())
        named = {**{str(c): c for c in choices}, **{json.dumps(c): c for c in choices}}
        return parameter.canonical(named.get(text, _scalar(text)))

    return read


def _scalar(text: object) -> object:
    """The number, truth value or null that ``text`` stands for, else the text."""
    try:
        return json.loads(str(text))
    except ValueError:
        return text


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

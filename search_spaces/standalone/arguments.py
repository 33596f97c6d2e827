"""The command line of ``command_line.main``, which is read before anything is trained."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
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
from search_spaces.options import Count, Options, refusals
from search_spaces.standalone.trained_models import Trained, check_module, names_no_module, of_campaign

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar
    from hpo.space.space import Parameter


class MakeTask(Protocol):
    """``make_task`` of a campaign's module."""

    __module__: str

    @property
    def options(self) -> type[Options]: ...

    def __call__(self, **options: Any) -> Any: ...

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
    """Number of trainings whose mean is the test, with --config or --campaign; left out: as the task has it."""
    directory: Path | None = None
    """Directory in which the run is saved, for a second call to continue it; left out: it is not saved."""
    export: Path | None = None
    """Write the trained model to this file, by safetensors; with --campaign the model that the campaign has trained."""
    merge: bool = False
    """Multiply low-rank weights out in the file of --export, as in the ordinary network."""
    anew: bool = False
    """Train again with --campaign and --export, as the options say."""
    rest: CliUnknownArgs

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use arguments alone: a variable of the environment called SEED is no option."""
        return (init_settings,)

    @property
    def trains(self) -> bool:
        """Whether a configuration is trained, or only the model that a campaign has trained is written."""
        return self.campaign is None or self.export is None or self.anew


@dataclass(frozen=True, kw_only=True)
class Request:
    """Command, keywords of make_task from the file or the campaign and as given, and the configuration that the given
    parameters change, None: the task's default; ``trained``: the campaign's individual with that configuration.
    """

    command: Command
    options: Mapping[str, Any]
    start: Mapping[str, Scalar] | None = None
    trained: Trained | None = None


def read(make_task: MakeTask, arguments: Sequence[str] | None = None) -> Request:
    """The request of ``arguments`` without its parameters, which depend on the task of its options.

    Raises:
        UsageError: the request is not allowed.
        SystemExit: after --help.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    module, model = make_task.__module__, _with_options(make_task)
    helps = {"-h", "--help"}
    command = _parsed(model, [word for word in given if word not in helps])
    names = [name for name in make_task.options.model_fields if name in command.model_fields_set]
    options = {name: getattr(command, name) for name in names}
    if helps & set(given):
        _help(model, make_task, options)
    _check_together(command, names)
    start: Mapping[str, Scalar] | None = None
    known: Mapping[str, Any] = {}
    trained: Trained | None = None
    if command.campaign is not None:
        trained = of_campaign(command.campaign, module, command.id)
        start, known = trained.params, trained.options
    elif command.config is not None:
        start, known = _configuration(command.config, module)
    return Request(command=command, options={**known, **options}, start=start, trained=trained)


def _check_together(command: Command, options: Sequence[str]) -> None:
    """UsageError for arguments that mean nothing without others, or beside them."""
    given = {name for name in command.model_fields_set if getattr(command, name) not in (None, False)}
    for name, needed in (
        ("merge", ("export",)),
        ("id", ("campaign",)),
        ("anew", ("campaign",)),
        ("test_seeds", ("config", "campaign")),
    ):
        if name in given and not given.intersection(needed):
            raise hpo.UsageError(
                f"{_flag(name)} needs another argument: add {' or '.join(map(_flag, needed))}"
            )
    if {"config", "campaign"} <= given:
        raise hpo.UsageError("--config and --campaign both name a configuration. Leave one of them out.")
    set_names = [name for name in ("seed", "test_seeds", "directory") if name in command.model_fields_set]
    of_training = [*map(_flag, (*set_names, *options)), *(word for word in command.rest if word[:2] == "--")]
    if not command.trains and of_training:
        raise hpo.UsageError(
            f"{of_training[0].split('=')[0]} says how to train, and --campaign with --export writes the model that the "
            "campaign has trained. Leave it out, or add --anew to train again."
        )


def parameters(task: hpo.Task, request: Request) -> dict[str, Scalar]:
    """The given parameters, and the others from ``request.start``. UsageError if the space or a constraint refuses
    them.
    """
    found = _parsed(_with_parameters(type(request.command), task), request.command.rest)
    if found.rest:
        flag = next((word.split("=")[0] for word in found.rest if word.startswith("-")), found.rest[0])
        valid = [_flag(name) for name in type(found).model_fields if name != "rest"]
        raise hpo.UsageError(f"unrecognized arguments: {' '.join(found.rest)}. {suggestion(flag, valid)}")
    chosen = {name: getattr(found, name) for name in task.space.parameters if name in found.model_fields_set}
    space = task.space
    params = space.validate(request.start if request.start is not None else task.default or {})
    if chosen:
        # Parameters that exist only now get the middle of their range; those that do not exist are refused.
        params = space.validate({**space.decode(space.encode({**params, **chosen})), **chosen})
    for constraint in task.constraints:
        if not constraint(dict(params)):
            rule = " ".join((constraint.__doc__ or "").split())
            options = "".join(f", {name} = {value!r}" for name, value in request.options.items())
            raise hpo.UsageError(
                f"constraint {getattr(constraint, '__name__', constraint)} refuses {params}{options}: {rule} Change "
                "one of them."
            )
    return params


# The parser


def _with_options(make_task: MakeTask) -> type[Command]:
    """The model of all arguments but the parameters."""
    fields: dict[str, Any] = {}
    for name, field in make_task.options.model_fields.items():
        described = copy(field)
        described.description = make_task.options.describe(name)
        fields[name] = (field.annotation, described)
    model = create_model(Command.__name__, __base__=Command, __doc__=Command.__doc__, **fields)
    model.model_config["cli_prog_name"] = f"python -m {make_task.__module__}"
    return model


def _with_parameters(model: type[Command], task: hpo.Task) -> type[Command]:
    """``model`` with the parameters of the task, which exist once it is made with the options."""
    start = task.default or {}
    fields: dict[str, Any] = {}
    for name, parameter in task.space.parameters.items():
        described = ", ".join(f"{key} {value}" for key, value in parameter.describe().items())
        kind = Any if hasattr(parameter, "choices") else int if isinstance(parameter, hpo.Int) else float
        fields[name] = (
            Annotated[kind, BeforeValidator(_reader(parameter))],
            Field(start.get(name), description=f"parameter: {described}"),
        )
    with warnings.catch_warnings():
        # A parameter called "copy" hides a method of the model, which nobody calls.
        warnings.simplefilter("ignore", UserWarning)
        return create_model(Command.__name__, __base__=model, __doc__=Command.__doc__, **fields)


def _parsed(model: type[Command], arguments: Sequence[str]) -> Command:
    try:
        return CliApp.run(model, cli_args=list(arguments), cli_exit_on_error=False)
    except SettingsError as error:
        sentence = str(error).removeprefix("error parsing CLI: ")
        program = model.model_config["cli_prog_name"]
        raise hpo.UsageError(f"{sentence}. `{program} --help` lists what there is.") from None
    except ValidationError as error:
        raise hpo.UsageError(refusals(error, model.model_fields)) from None


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
    """Conversion of an argument's text to a value of ``parameter``."""

    def read(given: object) -> Scalar:
        text = str(given)
        choices = getattr(parameter, "choices", ())
        named = {**{str(c): c for c in choices}, **{json.dumps(c): c for c in choices}}
        if text in named:
            return parameter.canonical(named[text])
        try:
            return parameter.canonical(json.loads(text))
        except json.JSONDecodeError:
            return parameter.canonical(text)

    return read


def _configuration(path: Path, module: str) -> tuple[Mapping[str, Scalar], Mapping[str, Any]]:
    """Parameters and options in a file: parameters alone, both under their names, or the first of a list of such."""
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

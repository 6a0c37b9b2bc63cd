"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from learnloop.http_settings import URL_VARIABLE
from learnloop_service.app.cli.terminal import Failure, failing_on, progress
from learnloop_service.environment.installation import shipped
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName


def config_file(name: str) -> Path:
    """Return the file of this name, or the example that comes with Learnloop: `configs/email_search.yaml` is found from
    any directory. Raises typer.BadParameter if there is neither."""
    file, examples = Path(name), shipped("configs")
    if file.exists() and not file.is_dir():
        return file
    example = examples.parent / file
    if file.parts[:1] == (examples.name,) and example.is_file():
        progress.print(f"reading {example}", soft_wrap=True)
        return example
    names = ", ".join(sorted(str(path.relative_to(examples.parent)) for path in examples.rglob("*.yaml")))
    raise typer.BadParameter(f"there is no file {name}; the examples are {names}")


def named_model(name: str, with_step: str = "") -> ModelName:
    """Return a model or promoted name. Raises Failure if it is none or names a checkpoint; `with_step` says how else
    the step is given."""
    with failing_on(ValueError):
        model = ModelName.parse(name)
    if model.step is not None:
        raise Failure(f"{name!r} names a checkpoint; give PROJECT/NAME{with_step}")
    return model


def setting(help: str, metavar: str = "PATH=VALUE") -> Any:
    """Return the option `--set`, which gives any field of a request."""
    return typer.Option("--set", metavar=metavar, help=help)


def own_url(purpose: str) -> Any:
    """Return the option `--url` of a command that starts a service without it."""
    help = f"URL of a running service. \\[default: start one for this {purpose}]"
    return typer.Option("--url", envvar=URL_VARIABLE, help=help)


StartedBy = Annotated[
    str | None, typer.Option(metavar="KEY", help="Only what this API key, by id or name, started. \\[default: all]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a single JSON document to stdout.")]
PromptOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[@VERSION]",
        help="Stored prompt that the checkpoint is served with; - for the environment's own texts. \\[default: the one "
        "that the name had with it last, else that of its run]",
    ),
]
OfName = Annotated[str | None, typer.Option(help="Only versions of this name. \\[default: all]")]
OnlyVersion = Annotated[int | None, typer.Option(min=1, help="Only this version. \\[default: all]")]
EndRelease = Annotated[
    bool, typer.Option("--end-release", help="End a live release of the name, which otherwise prevents this.")
]
MachinePrice = Annotated[
    float | None,
    typer.Option(
        min=0.0001,
        max=1_000_000,
        metavar="USD",
        help="US dollars that an hour of this machine costs. \\[default: LEARNLOOP_MACHINE_PRICE_PER_HOUR, or none]",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Directory for models, inboxes and the database. \\[default: LEARNLOOP_DATA_DIR or .learnloop]",
    ),
]


def prompt_field(prompt: str | None) -> dict[str, Json]:
    """Return the field of a request that the option `--prompt` sets, if it was given."""
    return {} if prompt is None else {"prompt": None if prompt == "-" else prompt}


def served(checkpoint: str, prompt: Json) -> str:
    """Return a checkpoint with its prompt (None: the environment's own texts) in words."""
    if prompt is None:
        return checkpoint
    named = prompt["sha256"][:12] if prompt["name"] is None else f"{prompt['name']}@{prompt['version']}"
    return f"{checkpoint} with {named}"

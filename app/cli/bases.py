"""`learnloop bases`: base models for runs on the embedded backend, in the data directory and elsewhere."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from learnloop_service.app.cli.base_reports import print_verdict, state_of
from learnloop_service.app.cli.options import AsJson, DataDir
from learnloop_service.app.cli.phase_bar import PhaseBar
from learnloop_service.app.cli.serve import data_directory, settings_with
from learnloop_service.app.cli.terminal import Failure, failing_on, folded, print_json, print_list, progress, results
from learnloop_service.app.datasets.hub import HUB_ID, is_hub_id
from learnloop_service.training.bases.files import added_base_models, base_model_fault, data_dir_of, place_of_added
from learnloop_service.training.bases.report import FindingSeverity, written
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from learnloop_service.training.engine_libraries import missing_libraries

if TYPE_CHECKING:  # importing pydantic is slow
    from learnloop_service.app.settings import Settings

app = typer.Typer(
    no_args_is_help=True, help="Add base models that others made to the data directory, examine, list and remove them."
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class _Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Name = Annotated[str, typer.Argument(help="Name of the base model: lower-case letters, digits and ._-")]
NameOrHubId = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name for the base model: lower-case letters, digits and ._-; or NAMESPACE/NAME on the Hugging Face hub.",
    ),
]
Prompts = Annotated[
    int,
    typer.Option(min=0, max=32, help="Number of questions in each tool format. 0 leaves out the probe."),
]
Device = Annotated[_Device, typer.Option(help="Device of the probe. auto takes a GPU if there is one.")]


@dataclass(frozen=True, slots=True)
class _Base:
    """A base model and the directory with its files."""

    name: str
    directory: Path
    data_dir: Path

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(path.stat().st_size for path in self.directory.iterdir())

    @property
    def verdict(self) -> BaseVerdict | None:
        """The verdict on its files, or None if they were not examined since they changed."""
        return BaseVerdicts(self.data_dir).find(self.directory)

    @property
    def fault(self) -> str | None:
        """Why it cannot be used, or None."""
        return BaseVerdicts(self.data_dir).fault(self.directory) or base_model_fault(self.directory)

    def described(self) -> dict[str, Any]:
        report = self.verdict.report if self.verdict else None
        return {
            "name": self.name,
            "path": str(self.directory),
            "bytes": self.size,
            "fault": self.fault,
            "tool_format": report.tool_format if report else None,
            "report": written(report) if report else None,
        }


@app.command()
def add(
    name: NameOrHubId,
    source: Annotated[
        str | None,
        typer.Argument(
            help="A GGUF file, a directory in Hugging Face layout, or NAMESPACE/NAME on the hub. "
            "\\[default: of smollm2, the installed package; of NAMESPACE/NAME, the hub]",
        ),
    ] = None,
    prompts: Prompts = 32,
    device: Device = _Device.AUTO,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a base model: a Hugging Face directory is copied, a GGUF file converted, one of the hub downloaded.

    From the hub (HF_ENDPOINT, HF_TOKEN) come safetensors and tokenizer files only, never code or pickles.
    NAMESPACE/NAME alone is added as its second part in lower case.

    It is examined in a process with limits: special tokens that were never trained, the output head, stop tokens, the
    chat template, and in which format it writes tool calls. What can be mended is mended in the copy. Runs can use it
    immediately, as `"model": {"base_model": NAME}`; a running service needs no restart.
    """
    settings = settings_with(data_dir=data_dir)
    if source is None and HUB_ID.fullmatch(name):
        name, source = name.rpartition("/")[2].lower(), name
    with _on_this_machine(name, source, settings) as files:
        directory, verdict = add_base(name, files, settings.data_dir, prompts=prompts, device=device)
    if as_json:
        print_json(_Base(name, directory, data_dir_of(directory)).described())
        return
    results.print(f"{name} is a base model now, in {directory}", soft_wrap=True)
    print_verdict(name, verdict)


@contextmanager
def _on_this_machine(name: str, source: str | None, settings: "Settings") -> Iterator[Path | None]:
    """Yield the path of the source. One of the hub is downloaded for the duration of the block. Raises Failure."""
    if source is None or not is_hub_id(source):
        yield None if source is None else Path(source)
        return
    _require_new(name, settings.data_dir)
    _require_libraries()
    from learnloop_service.app.datasets.hub import HubError, download_whole

    token = settings.hf_token.get_secret_value() if settings.hf_token else None
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".download-", dir=settings.data_dir) as folder:
        progress.print(f"Downloading {source} from {settings.hf_endpoint}", soft_wrap=True)
        with failing_on(HubError):
            yield download_whole(source, str(settings.hf_endpoint).rstrip("/"), token, Path(folder))


def _require_new(name: str, data_dir: Path) -> None:
    """Raise Failure if the name cannot be given to a new base model."""
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} is no name for a base model: use lower-case letters, digits and ._-, at most 64")
    if place_of_added(data_dir, name).exists():
        raise Failure(f"there is a base model of the name {name} already: remove it first, or choose another")


def add_base(
    name: str, source: Path | None, data_dir: Path, *, prompts: int = 32, device: _Device = _Device.AUTO
) -> tuple[Path, BaseVerdict]:
    """Add the base model at `source`, or of the installed package. Returns its directory and the verdict on it.

    Raises Failure.
    """
    _require_new(name, data_dir)
    directory = place_of_added(data_dir, name)
    _require_libraries()
    with PhaseBar() as bar:
        from learnloop_service.training.bases import full_examination
        from learnloop_service.training.engine.registry import base_model_import

        with failing_on(base_model_import.CannotAdd):
            verdict = base_model_import.add(source or base_model_import.packaged(name), directory, bar)
        verdict = full_examination.ask_for_calls(
            directory, data_dir_of(directory), verdict, prompts=prompts, device=device, progress=bar
        )
    return directory, verdict


@app.command()
def check(
    name: Annotated[
        str | None, typer.Argument(help="Name of the base model. \\[default: all that were added or configured]")
    ] = None,
    prompts: Prompts = 32,
    device: Device = _Device.AUTO,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Examine base models again, and print what was found. Exits with 1 if one cannot be used."""
    bases = _bases(data_dir)
    if name is not None:
        bases = [base for base in bases if base.name == name]
    if not bases and name is not None:
        raise Failure(f"no base model {name!r} was added or configured: learnloop bases list")
    verdicts = {base: _examined(base, prompts, device) for base in bases}
    if as_json:
        print_json([base.described() for base in verdicts])
    for base, verdict in () if as_json else verdicts.items():
        results.print(f"{base.name}, in {base.directory}", soft_wrap=True)
        print_verdict(base.name, verdict)
    raise typer.Exit(1 if any(map(_is_faulty, verdicts.values())) else 0)


def _is_faulty(verdict: BaseVerdict) -> bool:
    return verdict.fault is not None or (
        verdict.report is not None and verdict.report.severity is FindingSeverity.FAULT
    )


def _examined(base: _Base, prompts: int, device: _Device) -> BaseVerdict:
    _require_libraries()
    with PhaseBar() as bar:
        from learnloop_service.training.bases import full_examination

        try:
            return full_examination.examine(base.directory, base.data_dir, prompts=prompts, device=device, progress=bar)
        except full_examination.NotChecked as error:
            raise Failure(f"{base.name} was not examined: {error}") from error


def _require_libraries() -> None:
    if (missing := missing_libraries()) is not None:
        raise Failure(missing)


def _bases(data_dir: Path | None) -> list[_Base]:
    """Return the base models that were added, and those that the settings name."""
    settings = settings_with(data_dir=data_dir)
    return [_Base(name, directory, settings.data_dir) for name, directory in settings.base_models.items()]


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the base models that were added, and what is wrong with them."""
    where = data_directory(data_dir)
    bases = [_Base(name, directory, where) for name, directory in added_base_models(where).items()]
    if as_json:
        print_json([base.described() for base in bases])
        return
    nothing = "None was added. Add one: learnloop bases add NAME SOURCE"
    print_list(bases, as_json, nothing, map(folded, ("NAME", "SIZE", "FORMAT", "STATE")), _row)


def _row(base: _Base) -> tuple[str, ...]:
    verdict = base.verdict
    tool_format = (verdict.report.tool_format if verdict and verdict.report else None) or "-"
    return base.name, f"{base.size / 1e6:,.0f} MB", tool_format, state_of(verdict, base.fault)


@app.command()
def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove a base model that was added. Models that train all weights have their own copy; LoRAs need it back."""
    directory = added_base_models(data_directory(data_dir)).get(name)
    if directory is None:
        raise Failure(f"no base model {name!r} was added to this data directory")
    shutil.rmtree(directory)
    results.print(f"{name} is removed")

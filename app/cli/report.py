"""`learnloop report`: writes the report on a run to a file, and verifies such a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, PATIENCE_S, Service, ServiceAt, explained_if_missing
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.plot_files import check_ending, write_plot
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import Failure, print_json, results, say
from learnloop_service.environment.json_type import Json

if TYPE_CHECKING:
    from learnloop_service.app.reports.verify import FigureDifference, ReportVerification

_WRITE = "write"
_SHOWN = 100
_MAX_TEXT = 200
_NOT_FOUND = 404
_TABLES = ("iterations", "evaluations", "rollouts")


class _Commands(TyperGroup):
    """Takes `report RUN_ID` for `report write RUN_ID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [_WRITE, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Write the report on a run to one file, and verify it. `report RUN_ID` is short for `report write RUN_ID`.",
)


@app.command(_WRITE)
def write(
    run_id: RunId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="The HTML file. \\[default: report-RUN_ID.html]"),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write a card of 1200 x 630 pixels instead: .svg or, with `plots`, .png."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Directory for iterations.csv, evaluations.csv and rollouts.csv instead."),
    ] = None,
    service: ServiceAt = HERE,
) -> None:
    """Write the report on a run: one HTML file, which needs no network; or a card to show elsewhere, or its tables."""
    if card is not None:
        check_ending(card)
    if card is None and tables is None:
        output = output or Path(f"report-{run_id}.html")
    service.within(PATIENCE_S)
    if output is not None:
        write_report(service, run_id, output)
        say(f"wrote {output}")
    if card is not None:
        write_plot(service.report(run_id, "svg"), card, scale=1.0)
        say(f"wrote {card}")
    for table in _TABLES if tables is not None else ():
        file = (tables or Path()) / f"{table}.csv"
        _write(service.read(f"/runs/{segment(run_id)}/tables/{table}"), file)
        say(f"wrote {file}")


def write_report(service: Service, run_id: str, file: Path) -> None:
    """Write the report on a run to a file, and create its directory if it is missing. Raises Failure."""
    _write(service.report(run_id, "html"), file)


def _write(content: str, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8", newline="")
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The HTML file of a report.")],
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the service: compare the file with the rollouts in it only.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(help="Public key of the service that signed it, `x` of GET /.well-known/learnloop-report-key."),
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Recompute a report's figures from its rollouts, check the service's signature, and compare all of it with the
    service. The exit code is 1 if anything differs. The first line says what was not verified."""
    from learnloop_service.app.reports.verify import DamagedReport, read_report, verified

    try:
        content = file.read_bytes().decode()
        run_id = read_report(content)["run"]["run_id"]
        current, service_key = (None, None) if offline else _current(service, str(run_id))
        verification = verified(content, current, key or service_key)
    except (OSError, UnicodeDecodeError, KeyError, TypeError, DamagedReport) as error:
        raise Failure(f"cannot verify {file}: {error}") from error
    _print(verification, as_json)
    raise typer.Exit(1 if any(verification.differences.values()) else 0)


def _current(service: Service, run_id: str) -> tuple[str, str | None]:
    """Return the file that the service writes now, and the public key of its signature; None if it is too old to sign
    files."""
    with explained_if_missing(f"the service at {service.url} has no run {run_id!r}; add --offline, or give --url"):
        current = service.within(PATIENCE_S).report(run_id, "html")
    key = service.call("GET", "/.well-known/learnloop-report-key", accept=(401, _NOT_FOUND))
    return current, key.get("x")


def _print(verification: "ReportVerification", as_json: bool) -> None:
    if as_json:
        listed = [
            {"than": other, **difference._asdict()}
            for other, figures in verification.differences.items()
            for difference in figures
        ]
        print_json(
            {
                "ok": not listed,
                "not_verified": verification.unverified,
                "checks": verification.notes,
                "differences": listed,
            }
        )
        return
    if verification.unverified:
        say(f"NOT VERIFIED: {'; '.join(verification.unverified)}", "bold yellow")
    for note in verification.notes:
        say(note)
    if not any(verification.differences.values()):
        rest = "all else agrees" if verification.unverified else "all of it agrees"
        results.print(rest, style="yellow" if verification.unverified else "green")
    for other, differences in verification.differences.items():
        _print_differences(other, differences)


def _print_differences(other: str, differences: "list[FigureDifference]") -> None:
    if differences:
        results.print(f"{len(differences):,} differ from {other}:", style="red")
    for difference in differences[:_SHOWN]:
        say(f"  {difference.name}: the file says {_short(difference.file)}, {_short(difference.other)} is right")
    if len(differences) > _SHOWN:
        results.print(f"  and {len(differences) - _SHOWN:,} more")


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."

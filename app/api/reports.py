"""What a run is shared by: its report, a card to show elsewhere, and its tables as CSV."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path, Query, Response
from fastapi.responses import StreamingResponse

from learnloop_service.app.api.dependencies import (
    CurrentCaller,
    CurrentDatabase,
    CurrentHeavyReads,
    CurrentSettings,
    CurrentStore,
    RunId,
)
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.json_text import dumps
from learnloop_service.app.errors import Conflict
from learnloop_service.app.plots.png import NoRenderer, png
from learnloop_service.app.reports.card import card
from learnloop_service.app.reports.collect import collect
from learnloop_service.app.reports.page import page
from learnloop_service.app.reports.signature import sign, signing_key
from learnloop_service.app.results.tables import RolloutTable, Table, Tables
from learnloop_service.app.security.secret_box import service_key
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json

router = keyed_router("results")
ReportForm = Literal["html", "json", "svg", "png"]


@dataclass(frozen=True, slots=True)
class _Form:
    render: Callable[[Json], bytes]
    media_type: str
    ending: str


def _picture(report: Json) -> bytes:
    try:
        return png(card(report), scale=1.0)
    except NoRenderer as error:
        raise Conflict(f"This service cannot draw the card. {error}") from error


_FORMS: Mapping[ReportForm, _Form] = {
    "html": _Form(lambda report: page(report).encode(), "text/html", "html"),
    "json": _Form(lambda report: dumps(report).encode(), "application/json", "json"),
    "svg": _Form(lambda report: card(report).encode(), "image/svg+xml", "svg"),
    "png": _Form(_picture, "image/png", "png"),
}
_CONTENT: dict[str, dict[str, str]] = {form.media_type: {} for form in _FORMS.values()}


def _rendered(form: ReportForm, report: Json, settings: Settings) -> bytes:
    content = _FORMS[form].render(report)
    if form != "html":
        return content
    return sign(content.decode(), signing_key(service_key(settings.secret_key, settings.data_dir))).encode()


@router.get(
    "/runs/{run_id}/report",
    response_class=Response,
    responses={200: {"content": _CONTENT, "description": "The report."}},
)
async def get_run_report(
    store: CurrentStore,
    heavy_reads: CurrentHeavyReads,
    settings: CurrentSettings,
    caller: CurrentCaller,
    run_id: RunId,
    form: Annotated[
        ReportForm,
        Query(
            description="`html`: one file to read offline and pass on. `json`: its data. `svg` and `png`: a card of "
            "1200 x 630 pixels"
        ),
    ] = "html",
) -> Response:
    """Download the report on a run. It has its verdict, its figures, and the rollouts that they follow from.

    The file holds texts of tasks and answers, and no API keys. `learnloop report verify` compares it with the run, and
    checks the service's signature on the HTML file.
    """
    run = await store.get(run_id)
    file_type = _FORMS[form]
    report = await heavy_reads.do(caller.namespace, lambda database: collect(database, settings, run))
    content = await asyncio.to_thread(_rendered, form, report, settings)
    headers = {
        # The browser must save it as a file, because what models wrote must not be a page of this origin.
        "Content-Disposition": f'attachment; filename="{run.id}.{file_type.ending}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content, media_type=file_type.media_type, headers=headers)


@router.get(
    "/runs/{run_id}/tables/{table}",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {}}, "description": "The table."}},
)
async def get_table(
    database: CurrentDatabase,
    store: CurrentStore,
    heavy_reads: CurrentHeavyReads,
    caller: CurrentCaller,
    run_id: RunId,
    table: Annotated[Table, Path(description="`iterations`, `evaluations` (the held-out ones), or `rollouts`")],
) -> StreamingResponse:
    """Download a table of a run as CSV: the figures of its charts.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    if table == "rollouts":
        run = await store.get(run_id)
        pieces = heavy_reads.pieces(caller.namespace, RolloutTable(run.id).next_piece)
    else:
        pieces = await Tables(database).open(run_id, table)
    headers = {"Content-Disposition": f'attachment; filename="{table}.csv"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces, media_type="text/csv", headers=headers)

"""The part of a report that shows how far its figures follow from the rollouts in it."""

from collections.abc import Sequence

from learnloop_service.app.reports.figures import Figure
from learnloop_service.app.reports.html import Html, h, joined
from learnloop_service.app.reports.rollouts import HASHED
from learnloop_service.app.reports.tables import MAX_ROWS, section, table_of
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

_SHOWN = 10
DATA_ID = "report"
"""Id of the element with the report's data."""


def proof(report: Json, checked: Sequence[Figure]) -> Html:
    """Return the section. `checked` are the recomputed figures."""
    return section(
        "Do the figures agree?",
        joined(
            _result(checked),
            h(
                "p",
                f"This file lists score, reward, success and hash of {_part(report['rollouts'])}, as JSON in the "
                f"element #{DATA_ID}. The hash of a rollout is the SHA-256 of the canonical JSON (sorted keys, no "
                f"spaces, UTF-8) of its stored trajectory: {len(HASHED)} fields of GET /trajectories/ID, with every "
                "message. Each iteration's digest covers the hashes of all its rollouts.",
            ),
            h(
                "p",
                "With access to the service, all of it can be compared with the database: ",
                h("code", "learnloop report verify FILE"),
                ". A reader without the service adds ",
                h("code", "--offline --key KEY"),
                ", which recomputes the figures and the page from the rollouts in the file, and checks that the "
                "service with this public key signed it. Without a key, nothing shows who wrote the file.",
            ),
            _digests(report),
        ),
    )


def _result(checked: Sequence[Figure]) -> Html:
    wrong = [figure.name for figure in checked if not figure.agrees]
    if not wrong:
        words = f"✓ All {counted(len(checked), 'figure')} that were recomputed from the rollouts in this file agree."
        return h("p", words, class_="agree", id="found")
    words = f"✗ {len(wrong):,} of {counted(len(checked), 'figure')} differ from what the rollouts in this file give: "
    return h("p", words, "; ".join(wrong[:_SHOWN]), class_="differ", id="found")


def _part(rollouts: Json) -> str:
    if rollouts["listed"] == rollouts["total"]:
        return f"all {counted(rollouts['total'], 'rollout')}"
    return (
        f"{rollouts['listed']:,} of {counted(rollouts['total'], 'rollout')} (the first, the best and the latest "
        f"evaluation, and every {rollouts['every']:,}th iteration, so that the file stays small)"
    )


def _digests(report: Json) -> Html:
    rows = report["digests"]
    listed = rows if len(rows) <= MAX_ROWS else [*rows[: MAX_ROWS // 2], *rows[-MAX_ROWS // 2 :]]
    table = table_of(
        ("iterations", "rollouts", "SHA-256 of the hashes of their rollouts"),
        [
            (
                str(row["from"]) if row["from"] == row["to"] else f"{row['from']} to {row['to']}",
                row["rollouts"],
                h("code", row["sha256"]),
            )
            for row in listed
        ],
        texts=(2,),
    )
    note = "" if len(listed) == len(rows) else f"The first and the last {MAX_ROWS // 2} of {len(rows)} are shown."
    return h("details", h("summary", f"{len(rows):,} digests"), table, h("p", note, class_="muted") if note else None)

"""Renders a report as one HTML file, which needs no network and no script to be read.

Equal documents give equal files. A script in the file recomputes the figures; the file's policy allows no other script.
"""

import base64
import json
import re
from hashlib import sha256
from importlib.resources import files

from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.reports.example_sections import examples_section
from learnloop_service.app.reports.figure_sections import charts
from learnloop_service.app.reports.figures import figures
from learnloop_service.app.reports.html import UNSEEN, Html, h, joined
from learnloop_service.app.reports.proof import DATA_ID, proof
from learnloop_service.app.reports.summary import STATES, head, name_of
from learnloop_service.app.reports.tables import checkpoints, evaluations, facts, iterations
from learnloop_service.environment.json_type import Json

_STYLE = files("learnloop_service.app.reports").joinpath("page.css").read_text(encoding="utf-8").strip()
_SCRIPT = files("learnloop_service.app.reports").joinpath("check.js").read_text(encoding="utf-8").strip()
_ESCAPED = re.compile(f"[<>&]|{UNSEEN.pattern}")


def page(report: Json) -> str:
    """Return the file."""
    report = json.loads(canonical(report))  # so that the order of keys is that of a report that was read from a file
    run = report["run"]
    checked = figures(report)
    title = f"{name_of(run)}: {STATES[report['verdict']['state']].lower()}"
    body = joined(
        head(report),
        charts(report),
        examples_section(report),
        evaluations(report),
        iterations(report),
        facts(report),
        checkpoints(report),
        proof(report, checked),
    )
    return (
        "<!doctype html>\n"
        + h(
            "html",
            h(
                "head",
                Html('<meta charset="utf-8">\n'),
                Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'),
                Html('<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
                Html('<meta name="color-scheme" content="light dark">\n'),
                h("title", title),
                Html(f"\n<style>{_STYLE}</style>\n"),
            ),
            "\n",
            h("body", h("main", body)),
            Html(f'\n<script type="application/json" id="{DATA_ID}">{_data(report)}</script>\n'),
            Html(f"<script>{_SCRIPT}</script>\n"),
            lang="en",
        )
        + "\n"
    )


def _policy() -> str:
    """Return a policy that allows this style sheet and this script, and no request at all."""
    return (
        f"default-src 'none'; style-src '{_source(_STYLE)}'; script-src '{_source(_SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(content: str) -> str:
    return f"sha256-{base64.b64encode(sha256(content.encode()).digest()).decode()}"


def _data(report: Json) -> str:
    """Return the document as JSON that can stand in HTML, with invisible characters escaped."""
    return _ESCAPED.sub(_escape, canonical(report))


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\u{ord(character):04x}" if character in "<>&" else json.dumps(character)[1:-1]

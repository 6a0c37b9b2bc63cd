"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "LEARNLOOP_URL"

Url = Annotated[str, typer.Option(envvar=URL_VARIABLE, help="The service to talk to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Directory of models, inboxes and the database. \\[default: LEARNLOOP_DATA_DIR or .learnloop]",
    ),
]

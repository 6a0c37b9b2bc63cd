"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "LEARNLOOP_URL"

Url = Annotated[str, typer.Option(envvar=URL_VARIABLE, help="URL of the service.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a single JSON document to stdout.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Directory for models, inboxes and the database. \\[default: LEARNLOOP_DATA_DIR or .learnloop]",
    ),
]

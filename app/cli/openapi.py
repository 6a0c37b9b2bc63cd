"""`learnloop openapi`: the OpenAPI document of this version, for generators of clients."""

from pathlib import Path
from typing import Annotated

import typer

from learnloop_service.app.cli.output_files import with_output
from learnloop_service.app.cli.terminal import print_json, results
from learnloop_service.environment.json_type import Json


@with_output
def openapi(
    typescript: Annotated[bool, typer.Option("--typescript", help="Print TypeScript types instead.")] = False,
) -> None:
    """Print the OpenAPI document of this version; no service is needed."""
    from learnloop_service.app.http.typescript import client_types

    api = current_document()
    if typescript:
        results.print(client_types(api), soft_wrap=True, end="")
    else:
        print_json(api)


def current_document() -> Json:
    """Return the OpenAPI document of this version."""
    from learnloop_service.app.main import create_app
    from learnloop_service.app.settings import load_settings

    return create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()

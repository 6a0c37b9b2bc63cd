"""`learnloop mcp`: tools for coding agents that operate the service."""

from contextlib import nullcontext
from typing import Annotated

import anyio
import typer

from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.openapi import current_document
from learnloop_service.app.cli.terminal import Failure, progress
from learnloop_service.environment.installation import install_command


def mcp(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve streamable HTTP at /mcp, where clients bring their own keys."),
    ] = None,
    characters: Annotated[int, typer.Option(min=500, help="Length at which answers are cut.")] = 6_000,
    service: ServiceAt = HERE,
) -> None:
    """Give coding agents tools to operate the service, over MCP: on the standard streams, with LEARNLOOP_API_KEY."""
    try:
        from learnloop_service.app.cli.operator_tools.server import http_app, on_standard_streams, protocol_server
    except ModuleNotFoundError as error:
        raise Failure(f"this needs the extra `mcp`, which is not installed: {install_command('mcp')}") from error
    try:
        api = service.call("GET", "/openapi.json")
    except Failure:  # it can be started later
        api = current_document()
    if http is None:
        anyio.run(on_standard_streams, protocol_server(api, lambda _: nullcontext(service), characters))
        return
    import uvicorn

    host, _, port = http.rpartition(":")
    if not host or not port.isdecimal():
        raise typer.BadParameter(f"{http!r} is not like 127.0.0.1:8765", param_hint="--http")
    server = protocol_server(api, lambda key: Service(service.url, api_key=key), characters)
    progress.print(f"MCP at http://{http}/mcp for {service.url}", soft_wrap=True)
    uvicorn.run(http_app(server), host=host.strip("[]"), port=int(port), log_level="warning")

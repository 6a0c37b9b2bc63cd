"""Says which requests are being answered, for clients that may have lost the connection without notice."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from learnloop_service.training.protocol.underway import HEADER, PATH

_MAX_LENGTH = 64


class Underway:
    """The ids, chosen by the clients, of the requests that are being answered."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def route(self) -> Route:
        return Route(f"{PATH}/{{id}}", self._get, methods=["GET"])

    def noting(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its requests noted while it answers them."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            id = dict(scope.get("headers", ())).get(HEADER.encode(), b"")[:_MAX_LENGTH].decode("latin-1")
            if not id:
                return await app(scope, receive, send)
            self._ids.add(id)
            try:
                await app(scope, receive, send)
            finally:
                self._ids.discard(id)

        return noted

    async def _get(self, request: Request) -> Response:
        return JSONResponse({"underway": request.path_params["id"] in self._ids})

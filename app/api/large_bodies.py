"""Bodies that can contain a big graph are decoded and checked on worker threads, so that other requests continue."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]  # typeshed leaves them out
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, SkipValidation, ValidationError

from learnloop_service.app.schemas.documents import GraphRequest, ScenariosRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest

_Model = TypeVar("_Model", bound=BaseModel)


class _YieldingDecoder(json.JSONDecoder):
    """Decodes the items of arrays one by one, because no other thread can run during a single call of the C decoder."""

    def __init__(self) -> None:
        super().__init__()
        whole: Any = self.scan_once  # type: ignore[has-type]
        self.parse_object = JSONObject
        self.parse_array = lambda start, _: JSONArray(start, whole)
        self.scan_once = py_make_scanner(self)


class _BigRequest(Request):
    async def json(self) -> Any:
        return await asyncio.to_thread(_decoded, await self.body())


def _decoded(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("not UTF-8", "", error.start) from error
    return _YieldingDecoder().decode(text)


class BigBodyRoute(APIRoute):
    """A route that decodes its JSON on a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_BigRequest(request.scope, request.receive))

        return handler


def _checked(model: type[_Model], body: object) -> _Model:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(
            [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        ) from error


# FastAPI calls plain functions on a thread. They receive unvalidated JSON here.
def _learn_loop(body: SkipValidation[LearnLoopRequest]) -> LearnLoopRequest:
    return _checked(LearnLoopRequest, body)


def _graph(body: SkipValidation[GraphRequest]) -> GraphRequest:
    return _checked(GraphRequest, body)


def _scenarios(body: SkipValidation[ScenariosRequest]) -> ScenariosRequest:
    return _checked(ScenariosRequest, body)


LearnLoopBody = Annotated[LearnLoopRequest, Depends(_learn_loop)]
GraphBody = Annotated[GraphRequest, Depends(_graph)]
ScenariosBody = Annotated[ScenariosRequest, Depends(_scenarios)]

"""`GET /metrics` for Prometheus."""

from fastapi import Request, Response

from learnloop_service.app.api.dependencies import CurrentCaller
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.errors import Forbidden
from learnloop_service.app.metrics.page import MetricsPage

router = keyed_router("health")
_TEXT = {"text/plain": {"schema": {"type": "string"}}, "application/openmetrics-text": {"schema": {"type": "string"}}}


@router.get("/metrics", response_class=Response, responses={200: {"content": _TEXT, "description": "The metrics"}})
async def get_metrics(request: Request, caller: CurrentCaller) -> Response:
    """Get all metrics of this process for Prometheus. Needs a key for all projects."""
    if caller.project is not None:
        raise Forbidden("The metrics are about all projects; this API key belongs to one. Use a key for the project *.")
    page: MetricsPage = request.app.state.metrics
    content, content_type = await page.render(request.headers.get("accept", ""))
    return Response(content, media_type=content_type)

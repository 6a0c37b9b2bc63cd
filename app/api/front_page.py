"""`GET /`: where everything is, as JSON for programs and as a page for people."""

from importlib.resources import files

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from app.api.routers import public_router

router = public_router("health")
_PAGE = files("app.api").joinpath("front_page.html").read_text(encoding="utf-8")
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health/ready",
    "runs": "/runs",
    "models": "/v1/models",
}


@router.get("/", include_in_schema=False)
async def front_page(request: Request) -> Response:
    """JSON if the client accepts it and no HTML; otherwise a page."""
    accepted = request.headers.get("accept", "")
    headers = {"Vary": "Accept"}
    if "application/json" in accepted and "text/html" not in accepted:
        return JSONResponse(
            {"name": request.app.title, "version": request.app.version, "links": _LINKS}, headers=headers
        )
    return HTMLResponse(_PAGE, headers=headers)

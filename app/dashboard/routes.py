"""Serves `GET /` (the dashboard, or links as JSON for programs) and the files of the dashboard."""

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from app.api.routers import public_router
from app.dashboard.files import dashboard
from app.errors import NotFound

router = public_router("health")
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health/ready",
    "runs": "/runs",
    "models": "/v1/models",
}
_ALLOWED = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Content security policy: nothing from other origins, no inline scripts or styles, no `eval`."""
_FOR_EVER = "public, max-age=31536000, immutable"


@router.get("/", include_in_schema=False)
async def front_page(request: Request) -> Response:
    """Return JSON if the client accepts it and not HTML; otherwise return the dashboard."""
    accepted = request.headers.get("accept", "")
    headers = {"Vary": "Accept"}
    if "application/json" in accepted and "text/html" not in accepted:
        return JSONResponse(
            {"name": request.app.title, "version": request.app.version, "links": _LINKS}, headers=headers
        )
    return HTMLResponse(dashboard().page, headers=headers | {"Content-Security-Policy": _ALLOWED})


@router.get("/favicon.ico", include_in_schema=False)
async def favicon() -> Response:
    """Return the dashboard's icon where browsers look for one on pages that name none, such as `/docs`."""
    icon = dashboard().files["icon.svg"]
    return Response(icon.content, media_type=icon.media_type)


@router.get("/assets/{version}/{name:path}", include_in_schema=False)
async def dashboard_file(version: str, name: str) -> Response:
    """Return a file that the dashboard loads."""
    all_files = dashboard()
    file = all_files.files.get(name)
    if file is None or version != all_files.version:
        raise NotFound(f"The dashboard has no file {name!r} in version {version!r}.")
    return Response(file.content, media_type=file.media_type, headers={"Cache-Control": _FOR_EVER})

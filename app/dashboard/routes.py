"""Serves the dashboard's page and files.

The page is at `/`, where programs get links as JSON, and at every path below `/ui`, which no route of the API has. It
finds the service's root by a relative `<base>`, so that it also works behind a proxy that adds a prefix to the path.
"""

from html import escape

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from learnloop_service.app.api.routers import public_router
from learnloop_service.app.auth.scopes import PAGES, route_path
from learnloop_service.app.dashboard.files import dashboard
from learnloop_service.app.dashboard.preview import Preview, preview_of
from learnloop_service.app.errors import NotFound

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
        "base-uri 'self'",
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
    return _page("./", None, headers)


@router.get(PAGES, include_in_schema=False)
@router.get(f"{PAGES}/{{place:path}}", include_in_schema=False)
async def inner_page(request: Request) -> Response:
    """Return the dashboard, with the run's name and verdict in its head if the caller may read the run."""
    return _page(_root(request), await preview_of(request), {})


def _root(request: Request) -> str:
    """Return the service's root relative to the request's path, as browsers count: by slashes that are not encoded."""
    raw: bytes | None = request.scope.get("raw_path")
    path = request.scope["path"] if raw is None else raw.decode("latin-1")
    return "../" * route_path({**request.scope, "path": path}).removeprefix(PAGES).count("/") or "./"


def _page(root: str, preview: Preview | None, headers: dict[str, str]) -> HTMLResponse:
    page = dashboard().page.replace("{base}", root).replace("{head}", _head(preview))
    return HTMLResponse(page, headers=headers | {"Content-Security-Policy": _ALLOWED})


def _head(preview: Preview | None) -> str:
    """Return the title, and the tags that other programs show for a link (Open Graph)."""
    if preview is None:
        return "<title>Learnloop</title>"
    properties = {"og:site_name": "Learnloop", "og:title": preview.title, "og:description": preview.text}
    tags = (f'<meta property="{name}" content="{escape(value)}">' for name, value in properties.items())
    return "\n".join([f"<title>{escape(f'{preview.title}: {preview.text}')}</title>", *tags])


@router.get("/favicon.ico", include_in_schema=False)
async def favicon() -> Response:
    """Return the dashboard's icon where browsers look for one on pages that name none, such as `/docs`."""
    icon = dashboard().files["icon.svg"]
    return Response(icon.content, media_type=icon.media_type)


@router.get("/assets/{version}/{name:path}", include_in_schema=False)
async def dashboard_file(request: Request, version: str, name: str) -> Response:
    """Return a file that the dashboard loads, compressed if the client accepts that."""
    all_files = dashboard()
    file = all_files.files.get(name)
    if file is None or version != all_files.version:
        raise NotFound(f"The dashboard has no file {name!r} in version {version!r}.")
    headers = {"Cache-Control": _FOR_EVER}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, media_type=file.media_type, headers=headers)
    headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(file.compressed, media_type=file.media_type, headers=headers)

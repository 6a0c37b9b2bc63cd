"""The public key with which anyone can check that this service wrote a report."""

from typing import Literal

from learnloop_service.app.api.dependencies import CurrentSettings
from learnloop_service.app.api.routers import public_router
from learnloop_service.app.reports.signature import public_text, signing_key
from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.app.security.secret_box import service_key

router = public_router("results", prefix="/.well-known")


class ReportKey(ResponseModel):
    """A JSON Web Key (RFC 8037)."""

    kty: Literal["OKP"] = "OKP"
    """Kind of key."""
    crv: Literal["Ed25519"] = "Ed25519"
    """Its curve."""
    x: str
    """The key, in base64url: what `learnloop report verify --key` takes."""


@router.get("/learnloop-report-key")
def report_key(settings: CurrentSettings) -> ReportKey:
    """Get the public key of the service's signature on reports."""
    return ReportKey(x=public_text(signing_key(service_key(settings.secret_key, settings.data_dir))))

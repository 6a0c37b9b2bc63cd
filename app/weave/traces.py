"""Traces to W&B Weave, which also needs a project."""

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.destinations import Destination, ExporterSession
from learnloop_service.app.weave.project import open_project
from learnloop_service.environment.trace import INPUT, MARKS, OUTPUT

_CLOUD = "https://api.wandb.ai"
_CLOUD_TRACES = "https://trace.wandb.ai"
_TIMEOUT_S = 10.0
_FOR_WEAVE = {
    "gen_ai.tool.call.arguments": INPUT,
    "gen_ai.tool.call.result": OUTPUT,
    **{mark: f"wandb.attributes.{name}" for name, mark in MARKS.items()},
}
"""Attributes that Weave's server reads under other names than those of the conventions, to show them in its calls."""


def destination(settings: Settings) -> Destination | None:
    """Return the project of the settings as a destination; None if they have none."""
    if settings.weave_project is None or settings.wandb_api_key is None:
        return None
    project, key = settings.weave_project, settings.wandb_api_key.get_secret_value()
    base = str(settings.wandb_base_url).rstrip("/")
    traces = settings.wf_trace_server_url or (_CLOUD_TRACES if base == _CLOUD else f"{base}/traces")
    session = ExporterSession({})
    exporter = OTLPSpanExporter(
        f"{str(traces).rstrip('/')}/otel/v1/traces",
        session=session,
        timeout=_TIMEOUT_S,
        compression=Compression.NoCompression,
    )
    # The exporter's constructor sets a collector's certificates on the session, so they are reset after it.
    session.auth, session.verify, session.cert = ("api", key), True, None

    def connect() -> None:
        session.own_headers = {"project_id": open_project(project, key, base)}

    return Destination("W&B Weave", exporter, session, connect, _FOR_WEAVE, takes_requests=False)

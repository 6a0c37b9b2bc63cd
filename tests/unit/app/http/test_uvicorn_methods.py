"""Limits of requests hold in the installed release of uvicorn, and FastAPI records nothing of a request by itself."""

import runpy
import subprocess
import sys

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.fakes.engine_process import ROOT

OVERRIDDEN = [
    "on_message_begin",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_response_complete",
    "send_400_response",
]


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_a_release_of_uvicorn_without_an_overridden_method_is_refused(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runpy.run_module("learnloop_service.app.http.protocol")
    monkeypatch.delattr(HttpToolsProtocol, method)
    with pytest.raises(ImportError, match=f"has no {method}, so the limits"):
        runpy.run_module("learnloop_service.app.http.protocol")


_TRACED = """
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from learnloop_service.app.main import create_app
from learnloop_service.app.settings import Settings

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
client = TestClient(create_app(Settings(data_dir=Path(sys.argv[1]), _env_file=None)))
assert client.get("/health/live?token=canary").status_code == 200
print([span.attributes for span in exporter.get_finished_spans()])
"""


def test_fastapi_records_no_queries_of_its_own(tmp_path: object) -> None:
    """Another library's tracer can be in the process; FastAPI would send it every request with its query."""
    process = subprocess.run([sys.executable, "-c", _TRACED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.strip() == "[]", process.stderr[-2000:]

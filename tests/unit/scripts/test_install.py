"""The installation passes on to uv what pip is configured with, and finds PyTorch's CPU builds."""

import socket
import sys
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from learnloop_service.environment.installation import CPU_INDEX
from scripts import install
from scripts.install import answers, read_configuration, torch_index, uv_settings, with_index

_LISTED = """\
:env:.extra-index-url='https://download.example/cpu'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.extra-index-url='file:///opt/one file:///opt/two'
global.find-links='/opt/wheels /opt/more'
global.timeout='180'
install.find-links='/opt/wheels\\n/opt/latest'
freeze.exclude='torch'
"""


def test_the_nearest_setting_decides() -> None:
    assert read_configuration(_LISTED) == {
        "extra-index-url": "https://download.example/cpu",
        "find-links": "/opt/wheels\n/opt/latest",
        "cert": "/etc/ssl/certs/ca-certificates.crt",
        "timeout": "180",
    }


def test_uv_gets_them_in_its_own_form() -> None:
    assert uv_settings(read_configuration(_LISTED), {}) == {
        "UV_INDEX": "https://download.example/cpu",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/opt/wheels,/opt/latest",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    }


def test_what_is_set_for_uv_stays() -> None:
    assert uv_settings({"index-url": "https://one.example/simple"}, {"UV_DEFAULT_INDEX": "elsewhere"}) == {}
    settings = uv_settings({"extra-index-url": "https://two.example"}, {"UV_INDEX_STRATEGY": "first-index"})
    assert settings == {"UV_INDEX": "https://two.example"}


@pytest.mark.parametrize(
    ("pip", "environment", "gpu", "index"),
    [
        ({}, {}, False, CPU_INDEX),
        ({"extra-index-url": "https://more.example"}, {}, False, CPU_INDEX),
        ({}, {}, True, None),
        ({"index-url": "https://mirror.example"}, {}, False, None),
        ({"no-index": "1"}, {}, False, None),
        ({}, {"UV_DEFAULT_INDEX": "https://mirror.example"}, False, None),
        ({"index-url": "https://mirror.example"}, {"TORCH_INDEX": "https://cpu.example/"}, True, "https://cpu.example"),
    ],
)
def test_cpu_builds_are_for_machines_without_a_gpu_or_another_index(
    pip: Mapping[str, str],
    environment: Mapping[str, str],
    gpu: bool,
    index: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls = []

    def reached(url: str, limit_s: float, certificates: str | None) -> bool:
        urls.append(url)
        return True

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(install, "answers", reached)
    assert torch_index(pip, environment) == index
    assert urls == [f"{index}/torch/"] * (index is not None)


def test_an_index_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "answers", lambda *_: False)
    assert torch_index({}, {"TORCH_INDEX": "https://cpu.example"}) is None
    assert with_index({"cert": "c"}, None) == {"cert": "c"}


def test_the_index_is_one_more() -> None:
    assert with_index({}, "https://cpu.example") == {"extra-index-url": "https://cpu.example"}
    both = {"extra-index-url": "file:///opt/one https://cpu.example"}
    assert with_index({"extra-index-url": "file:///opt/one"}, "https://cpu.example") == both


def test_an_index_answers_or_the_wait_for_it_ends(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        assert answers(f"{here}/torch/", 60)
        assert not answers(f"{here}/no-torch/", 60)
        server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes the connection, and says nothing
        there = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not answers(f"{there}/torch/", 0.1)
    assert not answers(f"{there}/torch/", 60)
    assert not answers("nonsense", 60)

"""The processor mode is chosen for the processor, and what the environment says already wins."""

import os
import platform
from pathlib import Path

import pytest

from learnloop_service.training.engine import cpu_mode
from learnloop_service.training.engine.cpu_mode import set_cpu_mode

VARIABLES = ("MKL_CBWR", "ATEN_CPU_CAPABILITY")


@pytest.fixture(autouse=True)
def _no_mode_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back even where it was not set
        monkeypatch.delenv(name)


def mode() -> dict[str, str]:
    """The mode that the environment names."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What stands for /proc/cpuinfo, of an x86 machine."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_mode, "CPUINFO", path)
    return path


AVX2 = {"MKL_CBWR": "AVX2,STRICT", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu sse2 avx avx2 avx512f", AVX2), ("fpu sse2 avx", {"MKL_CBWR": "AUTO,STRICT"}), (None, AVX2)],
    ids=["all processors with AVX2", "an older one", "flags that cannot be read"],
)
def test_the_mode_follows_from_the_flags(cpuinfo: Path, flags: str | None, expected: dict[str, str]) -> None:
    if flags is not None:
        cpuinfo.write_text(f"flags\t\t: {flags}\n")
    set_cpu_mode()
    assert mode() == expected


def test_a_mode_that_the_user_chose_is_kept(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo.write_text("flags\t\t: avx2\n")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    set_cpu_mode()
    assert mode() == {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2"}


def test_a_processor_without_mkl_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    set_cpu_mode()
    assert mode() == {}

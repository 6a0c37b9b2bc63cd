"""How this copy of Learnloop was installed: where its files are, and how an extra is added to it.

Learnloop is not on PyPI, where its name could be anybody's. So no message says `pip install learnloop[...]`: an extra
comes from where the copy came from, be it a wheel, a URL or a folder.
"""

import json
import shlex
import shutil
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "learnloop"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own package index with its CPU builds. Those for Linux on PyPI bring 3 GB of CUDA."""
_DEVICES = Path("/dev")
# Resolved, because the repository has the package behind a link.
_SOURCE = Path(__file__).resolve().parents[1]


def shipped(folder: str) -> Path:
    """Return a folder that comes with Learnloop beside its packages: in its source, or among the data files of the
    installed wheel."""
    is_source = (_SOURCE / "pyproject.toml").is_file()
    return (_SOURCE if is_source else Path(sysconfig.get_path("data"), "share", NAME)) / folder


def needs_extra(extra: str) -> str:
    """Return what a message to users of the service says of a missing extra, without where the service is installed."""
    return f"the extra `{extra}`, which is not installed here (docs/install.md#extras says how to add it)"


def install_command(extra: str) -> str:
    """Return the shell command that adds an extra to this copy; for those who have access to this machine."""
    pip = [sys.executable, "-m", "pip", "install"]
    # A source folder in which it was built has a record of it, too, but none of an installation.
    distribution = next((candidate for candidate in distributions(name=NAME) if candidate.read_text("INSTALLER")), None)
    if distribution is None:  # it runs from its source
        return shlex.join([*pip, f"{_SOURCE}[{extra}]"])
    by_uv = (distribution.read_text("INSTALLER") or "").strip() == "uv"
    command = ["uv", "pip", "install", "--python", sys.executable] if by_uv else pip
    if extra == "embedded" and sys.platform == "linux" and not has_nvidia_gpu():
        command += ["--torch-backend", "cpu"] if by_uv else ["--extra-index-url", CPU_INDEX]
    return shlex.join(command + (_this_copy(distribution, extra) or _requirements(distribution, extra)))


def has_nvidia_gpu(devices: Path = _DEVICES) -> bool:
    """Return whether this machine seems to have an NVIDIA GPU. Under WSL it has no device file, but `nvidia-smi`."""
    return any(devices.glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None


def _this_copy(distribution: Distribution, extra: str) -> list[str]:
    """Return the arguments that name this copy with the extra; empty if it is unknown where it came from, or if that
    has been removed."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin:
        return []
    url = str(origin["url"])
    parts = urlsplit(url)
    path = Path(url2pathname(parts.path))
    if parts.scheme == "file" and not path.exists():
        return []
    if (folder := origin.get("dir_info")) is not None:
        return ["--editable"] * bool(folder.get("editable")) + [f"{path}[{extra}]"]
    if (vcs := origin.get("vcs_info")) is not None:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return [f"{NAME}[{extra}] @ {url}"]


def _requirements(distribution: Distribution, extra: str) -> list[str]:
    """Return what the extra requires, such as `torch==2.13.0`."""
    marked = [requirement.partition(";") for requirement in distribution.requires or ()]
    return [name.strip() for name, _, marker in marked if f'extra == "{extra}"' in marker.replace("'", '"')]

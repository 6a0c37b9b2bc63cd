"""Install Learnloop, its client, its plug-ins and their dependencies into `.venv`: with uv, which takes seconds, or
else with pip.

    python3 scripts/install.py embedded,dev

The versions are those in `constraints.txt`. uv is taken from PATH or from the package index. It ignores pip's
configuration, so the indexes, local wheels and certificates configured for pip are passed on to it.

On a Linux machine without an NVIDIA GPU, PyTorch comes from its own index of CPU builds, if that can be reached: PyPI's
builds bring 3 GB of CUDA. TORCH_INDEX names another index, as for the Dockerfile.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from ssl import create_default_context
from threading import Thread
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # nothing is installed yet

from learnloop_service.environment.installation import CPU_INDEX, has_nvidia_gpu  # noqa: E402

VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / "python"

# Maps each pip setting to the uv variable with the same meaning.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
# uv separates indexes by spaces, as pip does, but these by commas.
COMMAS = {"UV_FIND_LINKS"}
# Sections of pip's configuration that apply to an installation; the first one with a setting wins.
SECTIONS = (":env:", "install", "global")
INDEX_LIMIT_S = 5.0
"""Longest wait for the index of CPU builds. Without it the installation is the same, only larger."""


def main(extras: str) -> int:
    """Install with `extras`, such as `embedded,dev`, and return the installer's exit status."""
    requirements = ["--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[{extras}]"]
    requirements += ["--editable", str(ROOT / "learnloop")]
    for plugin in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        requirements += ["--editable", str(plugin.parent)]
    uv = find_uv()
    configured = pip_configuration()
    index = torch_index(configured, os.environ)
    if uv:
        settings = uv_settings(with_index(configured, index), os.environ)
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "pip", *requirements]
        if subprocess.run(command, env=os.environ | settings).returncode == 0:
            return 0
        print("uv could not install it; now with pip", file=sys.stderr)
    if not has_pip(PYTHON):
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if index is not None:
        requirements += ["--extra-index-url", index]
    # Modules are compiled at their first import; compiling everything beforehand takes a minute.
    return subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", *requirements]).returncode


def torch_index(pip: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the index to take PyTorch from, beside those configured: TORCH_INDEX, or that of the CPU builds on a Linux
    machine without an NVIDIA GPU. None if it is not needed or does not answer, or if pip or uv is configured with
    another index in place of PyPI, which then has what it should have."""
    index = environment.get("TORCH_INDEX")
    if not index:
        replaced = {"index-url", "no-index"} & set(pip) or {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(environment)
        if sys.platform != "linux" or replaced or has_nvidia_gpu():
            return None
        index = CPU_INDEX
    index = index.rstrip("/")
    return index if answers(f"{index}/torch/", INDEX_LIMIT_S, pip.get("cert")) else None


def answers(url: str, limit_s: float, certificates: str | None = None) -> bool:
    """Return whether a HEAD request succeeds in this time. It is then left to its thread, because looking up a name can
    exceed the time limit of the socket."""
    successes = []

    def ask() -> None:
        with suppress(OSError, HTTPException, ValueError):
            context = create_default_context(cafile=certificates)
            with urlopen(Request(url, method="HEAD"), timeout=limit_s, context=context):
                successes.append(url)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit_s)
    return bool(successes)


def with_index(pip: Mapping[str, str], index: str | None) -> dict[str, str]:
    """Return pip's settings with one more index."""
    if index is None:
        return dict(pip)
    return {**pip, "extra-index-url": f"{pip.get('extra-index-url', '')} {index}".strip()}


def find_uv() -> str | None:
    """Return uv from PATH or the environment, installing it there if needed; None if it is unavailable. Also creates
    the environment: without pip if uv or this interpreter's pip can be used, because pip takes seconds to unpack."""
    on_path = shutil.which("uv")
    if PYTHON.exists():
        return on_path or shutil.which("uv", path=BIN) or _add_uv([PYTHON, "-m", "pip"])
    if on_path or has_pip(Path(sys.executable)):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], check=True)
        return on_path or _add_uv([sys.executable, "-m", "pip", "--python", PYTHON])
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    return _add_uv([PYTHON, "-m", "pip"])


def _add_uv(pip: Sequence[str | Path]) -> str | None:
    installation = subprocess.run([*pip, "install", "--quiet", "--no-compile", "uv"], stderr=subprocess.DEVNULL)
    return shutil.which("uv", path=BIN) if installation.returncode == 0 else None


def has_pip(python: Path) -> bool:
    """Whether this interpreter exists and has pip."""
    command = (python, "-c", "import pip")
    return python.exists() and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def pip_configuration() -> dict[str, str]:
    """Return pip's settings by name, from its files and environment variables; empty without pip."""
    python = next((python for python in (Path(sys.executable), PYTHON) if has_pip(python)), None)
    if python is None:
        return {}
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    return read_configuration(listed.stdout) if listed.returncode == 0 else {}


def read_configuration(listed: str) -> dict[str, str]:
    """Parse the output of `pip config list`: lines such as `global.find-links='/opt/wheels'`."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section in by_section:
            by_section[section][setting] = str(ast.literal_eval(value))
    return {setting: value for section in reversed(SECTIONS) for setting, value in by_section[section].items()}


def uv_settings(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pass pip's configuration to uv. Variables already set for uv itself are kept."""
    settings = {}
    for setting, variable in UV_VARIABLES.items():
        if pip.get(setting):
            settings[variable] = ("," if variable in COMMAS else " ").join(pip[setting].split())
    if "UV_INDEX" in settings:
        # Like pip, choose the best version of all indexes, not of the first one that has the package.
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {variable: value for variable, value in settings.items() if variable not in environment}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

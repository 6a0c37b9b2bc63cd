"""Install Learnloop in an empty environment as docs/install.md says, see that it works, and print time and size.

    python -m scripts.install_check client wheel uv-tool pipx clone [--python python3.13] [--extra embedded]

It needs the network (a package index), and `uv` or `pipx` on PATH for the ways of these names. With the extra
`embedded`, the whole service does an iteration (`learnloop train configs/smoke.yaml`). Everything is in a temporary
folder.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class InstallationCheck:
    """An installation into `folder`, with an interpreter that is installed already."""

    folder: Path
    python: str
    extra: str | None
    wheels: tuple[Path, Path]
    """The service's wheel and the client's."""

    @property
    def service(self) -> str:
        """The service's wheel as a requirement."""
        return f"{self.wheels[0]}[{self.extra}]" if self.extra else str(self.wheels[0])

    def client_alone(self) -> Path:
        """Install the client with pip; return its programs."""
        programs = self._venv()
        self.run(str(programs / "pip"), "install", "--quiet", str(self.wheels[1]))
        return programs

    def wheel(self) -> Path:
        """Install both wheels with pip; return their programs."""
        programs = self._venv()
        self.run(str(programs / "pip"), "install", "--quiet", self.service, str(self.wheels[1]))
        return programs

    def uv_tool(self) -> Path:
        """Install the service as a tool of uv; return the folder of its command."""
        self.run("uv", "tool", "install", "-q", "--python", self.python, "--with", str(self.wheels[1]), self.service)
        return self.folder / "bin"

    def pipx(self) -> Path:
        """Install the service with pipx; return the folder of its command."""
        self.run("pipx", "install", "--python", self.python, "--preinstall", str(self.wheels[1]), self.service)
        return self.folder / "bin"

    def clone(self) -> Path:
        """Clone what is committed, and `make install`; return the programs of its environment."""
        self.run("git", "clone", "--quiet", str(ROOT), str(self.folder / "clone"))
        self.run("make", "--silent", "-C", str(self.folder / "clone"), "install", f"PYTHON={self.python}")
        return self.folder / "clone" / ".venv" / "bin"

    def _venv(self) -> Path:
        self.run(self.python, "-m", "venv", str(self.folder / "env"))
        return self.folder / "env" / "bin"

    def run(self, *command: str) -> str:
        """Run a command outside of the repository; return what it prints to stdout. Raises CalledProcessError."""
        variables = {
            "UV_TOOL_DIR": str(self.folder / "tools"),
            "UV_TOOL_BIN_DIR": str(self.folder / "bin"),
            "PIPX_HOME": str(self.folder / "pipx"),
            "PIPX_BIN_DIR": str(self.folder / "bin"),
            "LEARNLOOP_DATA_DIR": str(self.folder / "data"),
        }
        unwanted = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")
        environment = {name: value for name, value in os.environ.items() if name not in unwanted} | variables
        finished = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=self.folder, env=environment
        )
        return finished.stdout


WAYS: dict[str, Callable[[InstallationCheck], Path]] = {
    "client": InstallationCheck.client_alone,
    "wheel": InstallationCheck.wheel,
    "uv-tool": InstallationCheck.uv_tool,
    "pipx": InstallationCheck.pipx,
    "clone": InstallationCheck.clone,
}


def main() -> None:
    """Check the ways that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="+", choices=WAYS)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--extra")
    options = parser.parse_args()
    python = shutil.which(options.python) or parser.error(f"there is no {options.python}")
    with tempfile.TemporaryDirectory() as folder:
        wheels = _wheels(Path(folder) / "wheels")
        for way in options.ways:
            folder_of_way = Path(folder) / way
            folder_of_way.mkdir()
            print(_checked(way, InstallationCheck(folder_of_way, python, options.extra, wheels)), flush=True)
            shutil.rmtree(folder_of_way)


def _checked(way: str, check: InstallationCheck) -> str:
    started = time.monotonic()
    programs = WAYS[way](check)
    seconds = time.monotonic() - started
    size = sum(path.lstat().st_size for path in check.folder.rglob("*")) / 1e6
    if way == "client":
        check.run(str(programs / "learnloop-agent"), "run", "--help")
        check.run(str(programs / "python"), "-c", "from learnloop import Learnloop; Learnloop().close()")
    else:
        check.run(str(programs / "learnloop"), "--help")
    works = "commands"
    if way == "clone" or (check.extra == "embedded" and way != "client"):
        check.run(str(programs / "learnloop"), "train", "configs/smoke.yaml", "--json")
        works = "an iteration"
    return f"{way:8} {check.run(check.python, '--version').strip():14} {seconds:5.0f} s {size:6,.0f} MB  {works}"


def _wheels(folder: Path) -> tuple[Path, Path]:
    """Build both wheels from what is committed."""
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*pip, str(source), str(source / "learnloop")], check=True)
    [service], [client] = folder.glob("learnloop-*.whl"), folder.glob("learnloop_client-*.whl")
    return service, client


if __name__ == "__main__":
    main()

"""Native programs that are published as npm packages. Node is not needed to run them.

A program is downloaded once from the npm registry, checked against its hash and kept in the virtual environment.
"""

import base64
import hashlib
import io
import platform
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
_PROGRAMS = Path(sys.prefix) / "share"


class ProgramUnavailable(Exception):
    """The program is not installed and cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class NpmProgram:
    """A program with a package for each platform."""

    package: str
    """Its npm package without the platform, for example "@typescript/typescript"."""
    version: str
    path: str
    """Where the program lies in its package."""
    sha512: Mapping[str, str]
    """Hash of the package for each platform, as stated by the registry."""

    def installed(self) -> Path:
        """Return the program's path, downloading it if needed. Raises ProgramUnavailable."""
        folder = _PROGRAMS / f"{self.package.rpartition('/')[2]}-{self.version}"
        if not (folder / self.path).exists():
            self._download(folder)
        return folder / self.path

    def _download(self, folder: Path) -> None:
        name = f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
        if name not in self.sha512:
            raise ProgramUnavailable(f"there is none for {name}")
        package = f"{self.package}-{name}"
        url = f"https://registry.npmjs.org/{package}/-/{package.rpartition('/')[2]}-{self.version}.tgz"
        try:
            tarball = httpx.get(url, timeout=120).raise_for_status().content
        except httpx.HTTPError as error:
            raise ProgramUnavailable(str(error)) from error
        if base64.b64encode(hashlib.sha512(tarball).digest()).decode() != self.sha512[name]:
            raise ProgramUnavailable(f"{url} is not the package that it was")
        unpacked = folder.with_suffix(".new")
        with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
            archive.extractall(unpacked, filter="data")
        (unpacked / "package").rename(folder)
        unpacked.rmdir()
        (folder / self.path).chmod(0o755)


TYPESCRIPT = NpmProgram(
    package="@typescript/typescript",
    version="7.0.2",
    path="lib/tsc",
    sha512={
        "linux-x64": "EYdf2cNg7rgCWJnxCdJ+F3V39O8ihb37eHAu1LK8oAFizgTQbPOK7zHHXbPt8rX24COqODXeI3sIf0fCXG7H/A==",
        "linux-arm64": "Qh4eU4/y3yDjnfjjyPYihMj5/ODIlmt+Bzu17OI+fiSRDW57QmU5SiN63exPRNJPKUzcc1INa1NXdrJ+MqHjUQ==",
        "darwin-arm64": "gowzar9MwS/aRWp6f3a4KUqzRjAZjOsmGNCM6LcTgXum+dBfgsBVMN+AgvOCCbguXyick6LJhpBszxMebJ8syA==",
    },
)
BIOME = NpmProgram(
    package="@biomejs/cli",
    version="2.6.8",
    path="biome",
    sha512={
        "linux-x64": "XIk3pLQT56I6Tti+u0DF8FtSNXjCMTPbxVTzfJ9cS2t1ImVKvrqV5b52GuEaJg6/wuiXvz0sjfb5saB4TPRjzA==",
        "linux-arm64": "0Bjim8lKwnrvXUHoI4k3Tb51BjoiLEwDnovCI8nSzkk6wj3dShiuAjrx6+X0Hjf4ejR1sRZgTQiSDHlpy9vB7w==",
        "darwin-arm64": "DHyj+JnRHcn4YdvpiqgTFZMYKSPELMCfFpNNlEuu1L8DKTGXhzW7raIwdsbo2Ie9nCljQLAQkVWQk/mwM0ueiA==",
    },
)

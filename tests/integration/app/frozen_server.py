"""A Postgres server whose processes are frozen, while its workers come and go."""

from contextlib import suppress

import psutil


def freeze(postmaster: psutil.Process) -> list[psutil.Process]:
    """All processes of the server. The postmaster first: then no other one begins."""
    postmaster.suspend()
    workers = postmaster.children()
    for each in workers:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    return [postmaster, *workers]


def thaw(processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.resume()


def lives(process: psutil.Process) -> bool:
    """Whether it runs, frozen or not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False

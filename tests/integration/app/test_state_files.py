"""Damaged files in the data directory: which one, what is wrong, what to do; and going on where that loses nothing."""

import socket
from pathlib import Path

import pytest
from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.processes.data_directory import DataDirectoryError
from learnloop_service.app.resources import _engine_name
from learnloop_service.app.service import _release_predecessor
from tests.integration.app.leased_work import claimed, queued, status_of, worker
from tests.integration.app.served import settings_for

GARBLED = (b"", b"\xff\xfe", b"garbled", b"host:1:abc\x00def", b"\x00" * 40)


@pytest.mark.parametrize("garbled", GARBLED)
async def test_without_the_workers_name_its_leases_lapse(database: Database, tmp_path: Path, garbled: bytes) -> None:
    run_id = await queued(database)
    dead, new = worker(database, "host:1:abcdef"), worker(database, "host:2:abcdef")
    await claimed(dead)
    (tmp_path / "worker").write_bytes(garbled)
    await _release_predecessor([new], new.worker, tmp_path / "worker")
    assert (tmp_path / "worker").read_text() == new.worker
    assert await new.claim() is None
    (tmp_path / "worker").write_text(dead.worker)
    await _release_predecessor([new], new.worker, tmp_path / "worker")
    await claimed(new)
    assert await status_of(database, run_id) == "running"


@pytest.mark.parametrize("garbled", GARBLED)
async def test_the_engines_name_is_restored_where_it_is_known(
    database: Database, tmp_path: Path, garbled: bytes
) -> None:
    local, shared = settings_for(tmp_path, None), settings_for(tmp_path, "postgresql://host/name")
    file, usual = tmp_path / "engine-name", f"{socket.gethostname()}:{tmp_path}"
    file.write_bytes(garbled)
    assert await _engine_name(shared, database) == file.read_text() == usual
    await queued(database, engine="before:/data")
    await queued(database, engine="http://shared:8100")
    assert await _engine_name(shared, database) == usual  # it is whole
    file.write_bytes(garbled)
    assert await _engine_name(local, database) == file.read_text() == "before:/data"
    file.write_bytes(garbled)
    with pytest.raises(DataDirectoryError) as error:
        await _engine_name(shared, database)
    assert str(error.value).startswith(f"{file} is damaged: it holds {garbled[:40]!r} instead of the name of an engine")
    assert "one of: before:/data; or delete it" in str(error.value)
    assert file.read_bytes() == garbled
    await queued(database, engine=usual)
    assert await _engine_name(shared, database) == file.read_text() == usual


async def test_with_a_checkpoint_store_runs_of_the_own_engine_belong_to_all(database: Database, tmp_path: Path) -> None:
    ours = await queued(database, engine=await _engine_name(settings_for(tmp_path, None), database))
    others = await queued(database, engine="other:/data")
    stored = settings_for(tmp_path, None, engine_checkpoint_store="s3://bucket/models/")
    assert await _engine_name(stored, database) == "s3://bucket/models"
    async with database() as tx:
        engines = {run.id: run.engine for run in (await tx.execute(select(Run))).scalars()}
    assert engines == {ours: "s3://bucket/models", others: "other:/data"}
    garbled = tmp_path / "engine-name"
    garbled.write_bytes(GARBLED[0])
    assert await _engine_name(stored, database) == "s3://bucket/models"

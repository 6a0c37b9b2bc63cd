"""Makes questions about a stored inbox and stores them, so that learn-loops with the inbox take them."""

import asyncio
from pathlib import Path
from typing import get_args

from learnloop_mail.service.inbox_questions import inbox_questions
from learnloop_service.app.datasets import documents, inbox_parts, rows
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.environment.base import Split


async def make_questions(
    database: Database, data_dir: Path, inbox: DatasetVersion, namespace: str, count: int, seed: int
) -> DatasetVersion:
    """Make up to `count` questions and store them for the project, under the inbox's name and as about this version of
    it. Raises InvalidRequest if a split gets no question."""
    store = DatasetStore(data_dir)
    await inbox_parts.fetch(database, store, inbox.sha256)
    questions = await asyncio.to_thread(inbox_questions, store.inbox_path(inbox.sha256), count, seed)
    if empty := [split for split in get_args(Split) if not any(row["split"] == split for row in questions)]:
        raise InvalidRequest(
            ("path", "name"),
            f"Of its {inbox.size} emails only {len(questions)} questions can be made, none for {' and '.join(empty)}. "
            "Upload more mail, or store questions of your own with POST /scenarios.",
        )
    new = documents.document(namespace, "scenarios", questions)
    version = NewVersion(
        namespace,
        "scenarios",
        inbox.name,
        str(new.reference["sha256"]),
        len(questions),
        inbox_sha256=inbox.sha256,
        origin={"source": "templates", "count": count, "seed": seed},
    )
    async with database.begin() as tx:
        await documents.save(tx, [new])
        return await rows.add(tx, version)

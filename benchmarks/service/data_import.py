"""Measure time and memory of importing a large data set into an inbox, and how long searches of it take.

    python -m benchmarks.service.data_import [EMAILS]

Writes synthetic emails in the layout of ART-E's data (Parquet) and as an mbox, prepares each with `learnloop data
prepare` in a separate process, and searches the inbox as an agent does: by one to three words, some with a sender, a
mailbox or dates.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from pathlib import Path

from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.environment.email_search.inbox import Inbox
from scripts.enron_layout import EMAILS

PEOPLE = 2_000
WORDS = 30_000
BATCH = 5_000
SEARCHES = 1_000
_START = datetime(1999, 1, 4, tzinfo=UTC)
_CHILD = """
import resource, sys, time
from learnloop_service.app.cli.main import app
began = time.monotonic()
try:
    app(sys.argv[1:])
finally:
    seconds, peak = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{seconds:.1f} {peak / 1024:.0f}", file=sys.stderr)
"""


class Mailer:
    """Generates emails whose word frequencies follow Zipf's law."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        self.words = ["".join(self._rng.choices(syllables, k=self._rng.randint(2, 4))) for _ in range(WORDS)]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(WORDS)))
        self.people = [f"{self._rng.choice(self.words)}.{number}@corp.example" for number in range(PEOPLE)]

    def text(self, count: int) -> list[str]:
        return self._rng.choices(self.words, cum_weights=self._weights, k=count)

    def rows(self, count: int) -> Iterator[dict[str, object]]:
        for number in range(count):
            words = self.text(self._rng.choice((40, 90, 90, 180, 400)))
            body = "\n".join(" ".join(words[start : start + 12]) for start in range(0, len(words), 12))
            yield {
                "message_id": f"<{number}@corp.example>", "subject": " ".join(self.text(5)),
                "from": self._rng.choice(self.people), "to": self._rng.sample(self.people, self._rng.randint(1, 4)),
                "cc": self._rng.sample(self.people, self._rng.randint(0, 3)), "bcc": [],
                "date": (_START + timedelta(minutes=4 * number)).replace(tzinfo=None),
                "body": f"{body}\nThe budget is {number} euros.", "file_name": f"f/{number}",
            }  # fmt: skip


def write(folder: Path, count: int) -> tuple[Path, Path]:
    """Write the same emails as Parquet and as mbox."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

    parquet, mbox = folder / "train.parquet", folder / "all.mbox"
    batch: list[dict[str, object]] = []
    with ParquetWriter(parquet, EMAILS) as table, mbox.open("w") as mails:
        for row in Mailer().rows(count):
            batch.append(row)
            sent_at = row["date"]
            assert isinstance(sent_at, datetime)
            assert isinstance(row["to"], list)
            mails.write(
                f"From {row['from']} {sent_at:%a %b %d %H:%M:%S %Y}\nFrom: {row['from']}\nTo: {', '.join(row['to'])}\n"
                f"Subject: {row['subject']}\nMessage-ID: {row['message_id']}\n"
                f"Date: {sent_at:%a, %d %b %Y %H:%M:%S} +0000\n\n{row['body']}\n\n"
            )
            if len(batch) == BATCH:
                table.write_table(pa.Table.from_pylist(batch, EMAILS))
                batch.clear()
        table.write_table(pa.Table.from_pylist(batch, EMAILS))
    return parquet, mbox


def prepared(name: str, source: Path, data_dir: Path) -> Path:
    """Prepare the data set twice, print the cost of each, and return the inbox."""
    arguments = ("data", "prepare", name, "--emails", str(source), "--questions", "none", "--data-dir", str(data_dir))
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", _CHILD, *arguments, "--json"], check=False, capture_output=True, text=True
        )
        if ran.returncode != 0:
            raise SystemExit(ran.stderr)
        version = json.loads(ran.stdout)
        seconds, megabytes = ran.stderr.split()[-2:]
        stages = " and ".join(version["done"]) or "nothing to do"
        print(
            f"{name}: {version['inbox']['emails']:,} emails, {stages}: {seconds} s, peak memory {megabytes} MB",
            flush=True,
        )
    path = DatasetStore(data_dir).inbox_path(version["inbox"]["sha256"])
    print(f"  source {source.stat().st_size / 1e6:,.0f} MB, inbox {path.stat().st_size / 1e6:,.0f} MB")
    return path


def search(path: Path) -> None:
    """Print the latency of searches."""
    mailer, rng = Mailer(), random.Random(1)
    kinds: dict[str, list[float]] = {"words": [], "words and sender": [], "words and mailbox": [], "words and day": []}
    with closing(Inbox(path)) as inbox:
        for number in range(SEARCHES):
            kind = list(kinds)[number % len(kinds)]
            words = mailer.text(rng.randint(1, 3))
            began = time.perf_counter()
            match kind:
                case "words":
                    inbox.search(words)
                case "words and sender":
                    inbox.search(words, sender=rng.choice(mailer.people))
                case "words and mailbox":
                    inbox.search(words, mailbox=rng.choice(mailer.people))
                case _:
                    inbox.search(words, sent_after=date(2000, 1, 1), sent_before=date(2000, 2, 1))
            kinds[kind].append(1_000 * (time.perf_counter() - began))
    for kind, times in {**kinds, "all": [spent for spent_ms in kinds.values() for spent in spent_ms]}.items():
        cuts = statistics.quantiles(times, n=100)
        print(f"  search by {kind}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, worst {max(times):.1f} ms")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        parquet, mbox = write(Path(folder), count)
        print(f"{count:,} emails written in {time.monotonic() - began:.0f} s", flush=True)
        search(prepared("parquet", parquet, Path(folder) / "data"))
        prepared("mbox", mbox, Path(folder) / "data")


if __name__ == "__main__":
    main()

"""Measure the seconds and peak memory of importing maliciously expensive mails.

    python -m benchmarks.service.mail_bombs

Each mail is imported in a separate process, as a file and inside an mbox, together with an ordinary mail that must
arrive in any case.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

FROM = b"From: Mallory <mallory@evil.example>\nSubject: bomb\nMIME-Version: 1.0\n"
GOOD = b"From: Ann <ann@a.example>\nSubject: lunch\nMessage-ID: <good@a.example>\n\nAt noon?\n"
_ENVELOPE = b"From mallory@evil.example Thu Nov  1 11:19:12 2001\n"


def quoted_printable(size: int) -> bytes:
    """Build a mail with lines of one escaped character."""
    return FROM + b"Content-Transfer-Encoding: quoted-printable\n\n" + b"=41=\n" * (size // 5)


def uuencode(size: int) -> bytes:
    """Build a mail with uuencoded lines of one character."""
    return FROM + b"Content-Transfer-Encoding: x-uuencode\n\nbegin 644 x\n" + b"!80``\n" * (size // 6) + b"`\nend\n"


def boundary(size: int) -> bytes:
    """Build a mail with one boundary of that size."""
    name = b"b" * size
    head = FROM + b'Content-Type: multipart/mixed; boundary="' + name + b'"\n\n'
    return head + b"--" + name + b"\n\nhello\n" + b"--\n" * 20_000 + b"--" + name + b"--\n"


def nested(depth: int) -> bytes:
    """Build a mail with nested parts, and lines that every level has to check."""
    levels = b"".join(
        b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (level, level) for level in range(depth)
    )
    return FROM + levels + b"\n" + b"--\n" * 100_000


def parameters(size: int) -> bytes:
    """Build a mail with a header field of empty parameters."""
    return FROM + b"Content-Type: multipart/mixed" + b";" * size + b"\n\nhello\n"


def parts(count: int) -> bytes:
    """Build a mail with empty parts."""
    return FROM + b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\n" * count


BOMBS: Mapping[str, Callable[[], bytes]] = {
    "16 MB of quoted-printable": lambda: quoted_printable(16_000_000),
    "10 MB of uuencode": lambda: uuencode(10_000_000),
    "a boundary of 1 MB": lambda: boundary(1_000_000),
    "900 nested parts": lambda: nested(900),
    "1 MB of parameters": lambda: parameters(1_000_000),
    "6 million parts": lambda: parts(6_000_000),
}


def main() -> None:
    """Print the measurements as a table or JSON."""
    parser = argparse.ArgumentParser(description="Import mails that are made to be expensive.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--import-this", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.import_this is not None:
        print(json.dumps(_imported(arguments.import_this)))
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = [
            {"mail": name, "in": kind, **_measured(_written(Path(folder), kind, make()))}
            for name, make in BOMBS.items()
            for kind in ("file", "mbox")
        ]
    if arguments.json:
        print(json.dumps(measured, indent=2))
        return
    print(f"{'mail':<28} {'in':<5} {'seconds':>8} {'peak MB':>8}  imported  reported")
    for row in measured:
        print(
            f"{row['mail']:<28} {row['in']:<5} {row['seconds']:>8.2f} {row['peak_mb']:>8.0f}  {row['imported']:>8}  "
            f"{', '.join(row['reported'])}"
        )


def _written(folder: Path, kind: str, bomb: bytes) -> Path:
    source = folder / kind
    if kind == "mbox":
        source.write_bytes(_ENVELOPE + bomb + b"\n" + _ENVELOPE + GOOD)
        return source
    source.mkdir(exist_ok=True)
    (source / "1.eml").write_bytes(bomb)
    (source / "2.eml").write_bytes(GOOD)
    return source


def _measured(source: Path) -> dict[str, Any]:
    """Import in a separate process, so that its peak memory is that of this import alone."""
    command = [sys.executable, "-m", "benchmarks.service.mail_bombs", "--import-this", str(source)]
    child = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def _imported(source: Path) -> dict[str, Any]:
    from environment.email_search.importer import import_mail

    with tempfile.TemporaryDirectory() as folder:
        clock = monotonic()
        report = import_mail([source], Path(folder) / "inbox.sqlite")
        seconds = monotonic() - clock
    return {
        "seconds": seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000,
        "imported": report.imported,
        "reported": [mail.reason for mail in report.broken],
    }


if __name__ == "__main__":
    main()

"""The same mail gives the same inbox on every Python that is installed here.

The address parsers of Debian's 3.11.2 and of 3.13.0 are strict, those of 3.11.7 and 3.12.1 are not.
"""

import os
import random
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
FROM = (
    "bob@x.example <bob@x.example>", "Bob [IT] <b@x.example>", "Eve :-) <e@x.example>, ,", "Orr, Bob <b@x.example>;",
    '"Bob <b@x.example>, "Ann" <a@x.example>', "undisclosed-recipients:;", "=?utf-8?q?Lee=2C_=C3=84?= <a@x.example>",
    "ann at x.example (Ann)", "<@a,@b:c@x.example>", '"john doe"@x.example', "b@[192.0.2.1]", "a@b@c", "Bob <b@x",
)  # fmt: skip
BODIES = (
    ("text/plain; charset=utf-8", "Grüße, мир, 会議室".encode()),
    ("text/plain; charset=iso-2022-jp", b"\x1b$B-!F|K\\\x1b(B"),
    ("text/plain; charset=gb2312", "合同 ①".encode("gb18030")),
    ("text/plain; charset=big5", "合約 €".encode("cp950")),
    ("text/html", '<meta charset="windows-1251"><p>жизнь</p>'.encode("cp1251")),
    ("text/html; charset=x-sjis", "<b>テスト</b>&#x1f600;".encode("cp932")),
    ("multipart/mixed; boundary=b", b"--b\n\none\n--b\nContent-Type: message/rfc822\n\nSubject: in\n\ntwo\n--b--"),
    ("text/plain; charset=utf-16", "ab".encode("utf-16")),
    ("text/plain; charset*=utf-8''x; charset=\"latin-1", b"caf\xe9"),
)  # fmt: skip
DATES = (
    "Tue, 4 Mar 2025 10:00:00 +0000",
    "4 Mar 25 10:00 EST",
    "Tue Mar  4 10:00:00 2025",
    "2025-03-04 10:00",
    "Tue, 4",
    "",
)
IMPORT = """
import hashlib, pathlib, sqlite3, sys
from learnloop_mail.reading.importer import import_mail
source, path = map(pathlib.Path, sys.argv[1:])
report = import_mail([source], path)
rows = [sqlite3.connect(path).execute(f"SELECT * FROM {t}").fetchall() for t in ("email", "address", "email_fts_data")]
broken = [(each.number, each.reason.partition(":")[0]) for each in report.broken]
print(report.imported, hashlib.sha256(repr((rows, broken, report.damaged, report.html_only)).encode()).hexdigest())
"""


def mails() -> Iterator[bytes]:
    """Yield odd mails, and copies of them with some bytes changed."""
    rng = random.Random(31)
    for number in range(400):
        kind, body = rng.choice(BODIES)
        encoded = rng.random() < 0.3
        sender, to, cc, subject = rng.choices(FROM, k=4)
        encoding = "base64" if encoded else "8bit"
        head = (
            f"From: {sender}\nTo: {to}, {cc}\nSubject: {number} {subject}\nDate: {rng.choice(DATES)}\n"
            f"Content-Type: {kind}\nContent-Transfer-Encoding: {encoding}\n\n"
        )
        mail = bytearray(head.encode() + (b64encode(body) if encoded else body))
        for _ in range(rng.choice((0, 0, 1, 3))):
            mail[rng.randrange(len(mail))] = rng.choice(b'"<>@,;:()[]=?\n\r\t \x00\x80\xe9\xff\\')
        yield bytes(mail)


@cache
def interpreters() -> dict[str, str]:
    """Return the paths of the installed Pythons, by version."""
    by_version: dict[str, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [shutil.which(f"python{version}") for version in VERSIONS]
    for path in (
        sys.executable,
        *named,
        *map(str, pyenv.glob("*/bin/python")),
        *map(str, Path("/usr/bin").glob("python3.*")),
    ):
        if path is None or path.endswith("-config"):
            continue
        printed = subprocess.run(
            [path, "-c", "import sys; print(sys.version.split()[0])"], capture_output=True, text=True
        )
        version = printed.stdout.strip()
        if printed.returncode == 0 and version.startswith(VERSIONS):
            by_version.setdefault(version, path)
    return by_version


def test_the_same_mail_gives_the_same_inbox(tmp_path: Path) -> None:
    if len(interpreters()) < 2:
        pytest.skip("only one Python is installed")
    (tmp_path / "mail").mkdir()
    for number, mail in enumerate(mails()):
        (tmp_path / "mail" / f"{number:03}.eml").write_bytes(mail)
    outputs = {}
    for version, path in interpreters().items():
        command = [path, "-c", IMPORT, str(tmp_path / "mail"), str(tmp_path / f"{version}.sqlite")]
        imported = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(("src", "plugins/mail"))},
        )
        assert imported.returncode == 0, imported.stderr
        outputs[version] = imported.stdout
    assert len(set(outputs.values())) == 1, outputs
    assert int(imported.stdout.split()[0]) > 350

"""An S3-compatible store on a real port. It stores objects, whole or in parts, if the request's signature is right.

The signature is AWS Signature Version 4 (docs.aws.amazon.com, "Create a signed AWS API request").
"""

import hashlib
import hmac
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit

from tests.fakes.answering import Answer, answering

_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), SignedHeaders=([^,]+), Signature=(\w+)")


@dataclass
class ObjectStore:
    """`refusals` are pairs of status and XML code that answer the first requests, one each. While `hanging` is set, no
    request is answered."""

    key_id: str = "AKIDOFTHETESTS"
    secret: str = "the/secret+of/the/tests"
    bucket: str = "models"
    refusals: list[tuple[int, str]] = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Parts of incomplete uploads, by key and number."""
    puts: list[tuple[str, int]] = field(default_factory=list)
    """Key and size of every stored object, in order."""
    url: str = ""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if self.hanging.is_set():
            self.released.wait()
        if self.refusals:
            return _refused(*self.refusals.pop(0))
        if not self._signed(method, path, headers, body):
            return _refused(403, "SignatureDoesNotMatch")
        place, query = urlsplit(path).path, dict(parse_qsl(urlsplit(path).query, keep_blank_values=True))
        bucket, _, key = place.removeprefix("/").partition("/")
        if bucket != self.bucket:
            return _refused(404, "NoSuchBucket")
        return self._put(method, key, query, body)

    def _put(self, method: str, key: str, query: Mapping[str, str], body: bytes) -> Answer:
        match method, sorted(query):
            case "PUT", []:
                self._store(key, body)
            case "POST", ["uploads"]:
                self.parts[key] = {}
                return _xml(200, f"<InitiateMultipartUploadResult><UploadId>{len(key)}</UploadId>")
            case "PUT", ["partNumber", "uploadId"]:
                self.parts[key][int(query["partNumber"])] = body
            case "POST", ["uploadId"]:
                parts = self.parts.pop(key)
                self._store(key, b"".join(parts[number] for number in sorted(parts)))
                return _xml(200, "<CompleteMultipartUploadResult><ETag>x</ETag>")
            case _:
                return _refused(501, "NotImplemented")
        return 200, {"etag": f'"{hashlib.md5(body).hexdigest()}"'}, b""

    def _store(self, key: str, content: bytes) -> None:
        self.objects[key] = content
        self.puts.append((key, len(content)))

    def _signed(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bool:
        given = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        digest = hashlib.sha256(body).hexdigest()
        if given is None or given[1] != self.key_id or headers.get("x-amz-content-sha256") != digest:
            return False
        scope, names, split = given[2], given[3].split(";"), urlsplit(path)
        query = sorted(
            (quote(k, safe=""), quote(v, safe="")) for k, v in parse_qsl(split.query, keep_blank_values=True)
        )
        canonical = "\n".join(
            (
                method,
                split.path,
                "&".join(f"{name}={value}" for name, value in query),
                *(f"{name}:{headers[name].strip()}" for name in names),
                "",
                given[3],
                digest,
            )
        )
        text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self.secret}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.compare_digest(key.hex(), given[4])


def _refused(status: int, code: str) -> Answer:
    return _xml(status, f"<Error><Code>{code}</Code><Message>as scripted</Message>")


def _xml(status: int, inner: str) -> Answer:
    tag = inner[1 : inner.index(">")]
    return status, {"content-type": "application/xml"}, f"{inner}</{tag}>".encode()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a store while the context is open."""
    store = ObjectStore()
    with answering(store.answer) as store.url:
        try:
            yield store
        finally:
            store.released.set()

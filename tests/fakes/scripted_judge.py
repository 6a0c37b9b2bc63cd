"""A judge model behind OpenAI's API, on a real port, with the faults of real ones.

It knows the true scores: a candidate whose text contains `quality=0.37` deserves 0.37. To that it adds a bias for the
candidates that it reads first, and noise. Some of its replies are malformed. It understands the prompts of our judge
`ruler` and of ART's own `ruler_score_group`.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import httpx

from learnloop_service.environment.json_type import Json
from learnloop_service.judges.base import JudgeModel
from learnloop_service.judges.prices import listed_price

KEY = "sk-scripted-0123456789"
CHARACTERS_PER_TOKEN = 4
_TRUTH = re.compile(r"quality=([\d.]+)")


def marked(quality: float) -> str:
    """Return the text that marks a candidate with its true score."""
    return f"quality={quality:.4f}"


def _marked_truth(text: str) -> float:
    marks = _TRUTH.findall(text)
    return float(marks[-1]) if marks else 0.5


class Pauses:
    """Stands in for the waiting between requests; notes how long it should have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@dataclass(frozen=True, slots=True)
class Raw:
    """An arbitrary HTTP response."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


HANG = Raw(status=0)
"""No response, however long the client waits."""

Entries = list[dict[str, Json]]


def _content(change: Callable[[Entries], Json]) -> Callable[[Entries], Json]:
    return lambda entries: completion(json.dumps({"scores": change(entries)}))


MALFORMED: Mapping[str, Callable[[Entries], Json]] = {
    "truncated": lambda entries: completion(json.dumps({"scores": entries})[:-20], finish_reason="length"),
    "broken": lambda entries: completion(json.dumps({"scores": entries})[:-12]),
    "prose": lambda entries: completion("All of them are quite good, the first one perhaps the best."),
    "empty": lambda entries: completion(""),
    "refusal": lambda entries: completion(None, refusal="I cannot judge this."),
    "list": lambda entries: completion(json.dumps({"scores": {"first": 1.0}})),
    "seven": _content(lambda entries: [{**entries[0], "score": 7.0}, *entries[1:]]),
    "negative": _content(lambda entries: [{**entries[0], "score": -0.1}, *entries[1:]]),
    "nan": _content(lambda entries: [{**entries[0], "score": float("nan")}, *entries[1:]]),
    "words": _content(lambda entries: [{**entries[0], "score": "high"}, *entries[1:]]),
    "true": _content(lambda entries: [{**entries[0], "score": True}, *entries[1:]]),
    "missing": _content(lambda entries: entries[1:]),
    "doubled": _content(lambda entries: [*entries, entries[0]]),
    "unknown": _content(lambda entries: [{**entry, _id_key(entry): "zzzzz"} for entry in entries]),
}
"""Malformed replies by name, made from the well-formed entries."""


@dataclass
class ScriptedJudge:
    """`replies` are used first, one per request: a response, the name of a malformed one, or None for its opinion."""

    seed: int = 0
    bias: float = 0.0
    """Bias that is added to the first candidate and falls linearly to zero for the last."""
    noise: float = 0.0
    """Standard deviation of the noise."""
    truth: Callable[[str], float] | None = None
    """Returns the true score of a candidate's text. None: the score that is marked in it, or else 0.5."""
    malformed: float = 0.0
    """Share of replies that are malformed."""
    replies: list[Raw | str | None] = field(default_factory=list)
    requests: list[dict[str, Json]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answering: int = 0
    most: int = 0
    """Highest number of concurrent requests."""
    together: int = 1
    """Number of requests that must have arrived before the first is answered."""
    url: str = ""
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    def model(self, **options: Json) -> JudgeModel:
        """Return the JudgeModel that reaches this judge."""
        name = options.get("name", "openai/scripted")
        reached = {"base_url": self.url, "api_key": KEY, "transport": httpx.AsyncHTTPTransport}
        return JudgeModel(**{"name": name, "price": listed_price(name), **reached, **options})

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def reset(self) -> None:
        """Forget the requests and their tokens."""
        self.requests.clear()
        self.headers.clear()
        self.prompt_tokens = self.completion_tokens = 0

    def request_text(self, request: int = 0) -> str:
        """Return everything that the judge read in one request."""
        return "\n".join(str(message["content"]) for message in self.requests[request]["messages"])

    def reply(self, request: Mapping[str, Json]) -> Raw:
        """Return the reply to a request. The same question gets the same reply, whatever was asked before."""
        scripted = self.replies.pop(0) if self.replies else None
        if isinstance(scripted, Raw):
            return scripted
        chance = random.Random(f"{self.seed} {json.dumps(request['messages'])}")
        entries = self._entries(request, chance)
        if scripted is None and chance.random() < self.malformed:
            scripted = chance.choice(sorted(MALFORMED))
        body = MALFORMED[scripted](entries) if scripted else completion(json.dumps({"scores": entries}))
        usage = {
            "prompt_tokens": len(json.dumps(request["messages"])) // CHARACTERS_PER_TOKEN,
            "completion_tokens": len(json.dumps(body["choices"])) // CHARACTERS_PER_TOKEN,
        }
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        return Raw(body=json.dumps(body | {"usage": usage | {"total_tokens": sum(usage.values())}}))

    def _entries(self, request: Mapping[str, Json], chance: random.Random) -> Entries:
        key, attempts = _attempts(request["messages"][1]["content"])
        last = max(1, len(attempts) - 1)
        entries: Entries = []
        for position, (id, text) in enumerate(attempts):
            opinion = (self.truth or _marked_truth)(text)
            opinion += self.bias * (1 - position / last) + chance.gauss(0.0, self.noise)
            entries.append({key: id, "explanation": "as I see it", "score": round(min(1.0, max(0.0, opinion)), 3)})
        return entries

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answering += 1
        self.most = max(self.most, self.answering)
        if self.most >= self.together:
            self._enough.set()
        try:
            await self._enough.wait()
            with suppress(ConnectionError):
                await self._answer(reader, writer)
        finally:
            self.answering -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head.lower())
        request = json.loads(await reader.readexactly(int(length[1]) if length else 0))
        self.requests.append(request)
        self.headers.append(head)
        reply = self.reply(request)
        if reply is HANG:
            await reader.read()
            return
        body = reply.body.encode()
        headers = {"Content-Type": reply.content_type, "Content-Length": len(body), "Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **reply.headers}.items())
        writer.write(f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode() + body)
        await writer.drain()


class Remembering:
    """An in-memory cache of verdicts. They are stored as JSON, as in the database."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def get(self, key: str) -> Json | None:
        return json.loads(self.kept[key]) if key in self.kept else None

    async def put(self, key: str, value: Json) -> None:
        self.kept[key] = json.dumps(value)


@dataclass(frozen=True)
class OnlyModel:
    """`learnloop_service.judges.base.Models` with one model for every name."""

    only: JudgeModel = field(default_factory=lambda: ScriptedJudge().model())

    def model(self, name: str | None) -> JudgeModel:
        return replace(self.only, name=name or self.only.name)


@asynccontextmanager
async def scripted_judge(replies: Iterable[Raw | str | None] = (), **options: Json) -> AsyncIterator[ScriptedJudge]:
    """Run a judge while the context is open."""
    judge = ScriptedJudge(replies=list(replies), **options)
    server = await asyncio.start_server(judge.handle, "127.0.0.1", 0, limit=2**20)
    judge.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield judge


def _attempts(question: str) -> tuple[str, Sequence[tuple[str, str]]]:
    """Return the field that identifies a candidate in replies, and each candidate's id and text, in the order shown."""
    if question.startswith("{"):
        document = json.loads(question)
        return "id", [(attempt["id"], json.dumps(attempt)) for attempt in document["attempts"]]
    return "trajectory_id", re.findall(r'<trajectory id="(\d+)">\n(.*?)\n</trajectory>', question, re.DOTALL)


def _id_key(entry: Mapping[str, Json]) -> str:
    return "id" if "id" in entry else "trajectory_id"


def completion(content: str | None, *, finish_reason: str = "stop", refusal: str | None = None) -> dict[str, Json]:
    """Return the body of a response."""
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
    }

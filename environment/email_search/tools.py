"""The three tools of the email agent, and the episode whose state they change."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.resources import files
from typing import TypeVar

from learnloop_service.environment.base import Ending, Json, Outcome, Scenario, Tool, ToolError, ToolResult
from learnloop_service.environment.email_search.inbox import MAX_HITS, Email, Hit, Inbox
from learnloop_service.environment.tool_calls import ABSENT, check_call

_TEXT = {"type": "string"}
_LIST = {"type": "array", "items": _TEXT}

SEARCH = Tool(
    "search_inbox",
    f"Find mails that hold all the keywords. Returns at most {MAX_HITS} lines: id | subject | sender | date.",
    {
        "type": "object",
        "properties": {
            "keywords": _LIST,
            "sender": _TEXT,
            "recipient": _TEXT,
            "sent_after": {**_TEXT, "format": "date"},
            "sent_before": {**_TEXT, "format": "date"},
        },
        "required": ["keywords"],
        "additionalProperties": False,
    },
)
READ = Tool(
    "read_email",
    "Read one mail by its id.",
    {"type": "object", "properties": {"email_id": _TEXT}, "required": ["email_id"], "additionalProperties": False},
)
ANSWER = Tool(
    "return_final_answer",
    "End with the answer and the ids of the mails it rests on. Answer `I don't know` if the inbox does not tell.",
    {
        "type": "object",
        "properties": {"answer": _TEXT, "sources": _LIST},
        "required": ["answer", "sources"],
        "additionalProperties": False,
    },
)
TOOLS: Sequence[Tool] = (SEARCH, READ, ANSWER)

_SYSTEM = (
    files("learnloop_service.environment.email_search")
    .joinpath("prompts/system.txt")
    .read_text(encoding="utf-8")
    .strip()
)
_MAX_BODY_CHARACTERS = 5_000
T = TypeVar("T")


class EmailEpisode:
    """One attempt to answer a question from an inbox.

    Outcome keys: `finish` (answered, gave_up, out_of_turns, full_context, malformed or open), `answer`, `sources`,
    `turns`, `max_turns`, `detail`, `found` (how many emails its searches found), `unknown_tool` (a tool that does not
    exist was called). About the reference: `found_source` (a source was among some hits), `read_source`, `read_invalid`
    (an id that does not exist was requested), `cites_source` (one of its sources is given), `sources_correct` (exactly
    the right sources are given).
    """

    tools = TOOLS

    def __init__(self, scenario: Scenario, inbox: Inbox, max_turns: int) -> None:
        self.scenario = scenario
        self.max_turns = max_turns
        self._inbox = inbox
        self._turns = 0
        self._found: set[str] = set()
        self._read: set[str] = set()
        self._read_invalid = False
        self._unknown_tool = False
        self._finish = "open"
        self._detail = ""
        self._answer: str | None = None
        self._sources: list[str] = []

    def messages(self) -> list[dict[str, Json]]:
        """Return the system prompt and the question."""
        system = _SYSTEM.format(**self.fields())
        return [{"role": "system", "content": system}, {"role": "user", "content": self.scenario.task["question"]}]

    def fields(self) -> dict[str, str]:
        """Return what placeholders of a prompt stand for."""
        task = self.scenario.task
        return {
            "inbox_address": str(task["inbox_address"]),
            "query_date": str(task["query_date"]),
            "max_turns": str(self.max_turns),
        }

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Execute a tool call. Raises ToolError."""
        self._turns += 1
        self._unknown_tool = name not in _NAMES
        check_call(TOOLS, name, arguments)
        match name:
            case SEARCH.name:
                return ToolResult(await self._search(arguments))
            case READ.name:
                return ToolResult(await self._read_email(arguments["email_id"]))
            case ANSWER.name:
                self._answer, self._sources = arguments["answer"].strip(), arguments["sources"]
                self._finish = (
                    "gave_up" if self._answer.lower().replace("\u2019", "'").strip(" .") in _NO_ANSWER else "answered"
                )
                return ToolResult("", final=True)
        raise AssertionError(f"unreachable: {name}")

    async def _search(self, arguments: Mapping[str, Json]) -> str:
        keywords = arguments["keywords"]
        filters = {key: arguments[key] for key in ("sender", "recipient") if arguments.get(key) not in ABSENT}
        dates = {
            key: _date(arguments, key) for key in ("sent_after", "sent_before") if arguments.get(key) not in ABSENT
        }
        if not (keywords or filters or dates):
            raise ToolError("search_inbox needs at least one keyword")
        hits = await self._query(
            lambda: self._inbox.search(
                keywords,
                sender=filters.get("sender"),
                recipient=filters.get("recipient"),
                sent_after=dates.get("sent_after"),
                sent_before=dates.get("sent_before"),
                mailbox=self.scenario.task["inbox_address"] if self._inbox.shared else None,
            )
        )
        self._found.update(hit.id for hit in hits)
        return "\n".join(map(_hit_line, hits)) or "No mail holds all of these keywords."

    async def _read_email(self, email_id: str) -> str:
        email = await self._query(lambda: self._inbox.read(email_id))
        if email is None:
            self._read_invalid = True
            return f"There is no mail {email_id}."
        self._read.add(email.id)
        return _mail_text(email)

    async def _query(self, query: Callable[[], T]) -> T:
        return await asyncio.to_thread(query) if self._inbox.blocking else query()

    def end(self, reason: Ending, detail: str) -> None:
        """Record that the rollout ended without a final answer."""
        self._finish, self._detail = reason, detail

    def outcome(self) -> Outcome:
        """Return the facts that judges and reward use."""
        sources = set(self.scenario.reference.get("source_ids", ()))
        return {
            "finish": self._finish,
            "detail": self._detail,
            "answer": self._answer,
            "sources": self._sources,
            "turns": self._turns,
            "max_turns": self.max_turns,
            "found": len(self._found),
            "found_source": bool(sources & self._found),
            "read_source": bool(sources & self._read),
            "read_invalid": self._read_invalid,
            "unknown_tool": self._unknown_tool,
            "cites_source": bool(sources.intersection(self._sources)),
            "sources_correct": bool(sources) and set(self._sources) == sources,
        }


_NAMES = {tool.name for tool in TOOLS}
_NO_ANSWER = {"i don't know", "i dont know", "i do not know", "unknown", ""}


def _hit_line(hit: Hit) -> str:
    name = hit.sender.partition("<")[0].strip(' "') or hit.sender
    return f"{hit.id} | {hit.subject} | {name} | {_day(hit)}"


def _mail_text(email: Email) -> str:
    body = email.body
    if len(body) > _MAX_BODY_CHARACTERS:
        body = f"{body[:_MAX_BODY_CHARACTERS]}\n[{len(email.body) - _MAX_BODY_CHARACTERS} more characters]"
    copied = f"\nCc: {', '.join(email.cc)}" if email.cc else ""
    header = f"From: {email.sender}\nTo: {', '.join(email.to)}{copied}\nDate: {_day(email)}\nSubject: {email.subject}"
    return f"{header}\n\n{body}"


def _day(mail: Hit | Email) -> str:
    return f"{mail.sent_at.day} {mail.sent_at:%b %Y}" if mail.sent_at else "undated"


def _date(arguments: Mapping[str, Json], key: str) -> date:
    try:
        return date.fromisoformat(arguments[key])
    except ValueError as error:
        raise ToolError(f"{key} must be a date such as 2026-03-14, not {arguments[key]!r}") from error

"""The environment `email_search`: questions about an inbox, answered with sources.

Config: `inbox` is `synthetic` (default: a new invented inbox for every question), the name of an imported one,
`<data dir>/inboxes/<name>.sqlite`, or `{"sha256": ...}` for a prepared or uploaded one, whose files never change. Its
questions are `scenarios`; without them, an imported inbox uses `<name>.questions.jsonl` in the same folder. `reward`
names one of the rewards in `reward.py`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path

from learnloop_service.environment.base import Environment, Json, Outcome, Scenario, Split, ToolCall, UnknownScenario
from learnloop_service.environment.email_search import questions, synthetic
from learnloop_service.environment.email_search.inbox import Inbox, InboxError
from learnloop_service.environment.email_search.oracle_search import Search, search_by_words, searches_with_filters
from learnloop_service.environment.email_search.query_date import today_of
from learnloop_service.environment.email_search.reward import CORRECT_FROM, REWARDS, Reward, default
from learnloop_service.environment.email_search.tools import ANSWER, READ, SEARCH, EmailEpisode
from learnloop_service.environment.explained import ending, shortened
from learnloop_service.environment.traits import Traits

NAME = "email_search"
SYNTHETIC = "synthetic"
"""The value of `inbox` for invented inboxes."""
_RUBRIC = (
    files("learnloop_service.environment.email_search")
    .joinpath("prompts/rubric.txt")
    .read_text(encoding="utf-8")
    .strip()
)
DEFAULT_MAX_TURNS = 8
_KEPT_WORLDS = 512
_SHOWN_SOURCES = 3
"""Maximum number of ids in a clause."""
_SETTINGS = ("inbox", "scenarios", "reward")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INBOX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def inbox_path(data_dir: Path, name: str) -> Path:
    """Return the path of an imported inbox. Raises ValueError if the name is not a plain word."""
    if not _INBOX_NAME.fullmatch(name):
        raise ValueError(f"an inbox's name is letters, digits, '-' and '_' (64 at most), not {name!r}")
    return data_dir / "inboxes" / f"{name}.sqlite"


def version_path(data_dir: Path, sha256: str) -> Path:
    """Return the path of the inbox whose emails have this hash. Raises ValueError if it is not a hash."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"an inbox's sha256 is 64 hexadecimal digits, not {sha256!r}")
    return data_dir / "datasets" / "inboxes" / f"{sha256}.sqlite"


def questions_path(inbox: Path) -> Path:
    """Return the path of the questions about the inbox at that path."""
    return inbox.with_suffix(".questions.jsonl")


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """Build the environment for a request's config. Raises ValueError."""
    if unknown := set(config) - set(_SETTINGS):
        raise ValueError(f"email_search knows no config {', '.join(sorted(unknown))}; it has: {', '.join(_SETTINGS)}")
    inbox, scenarios, named = config.get("inbox", SYNTHETIC), config.get("scenarios"), config.get("reward", "default")
    reward = REWARDS.get(named) if isinstance(named, str) else None
    if reward is None:
        raise ValueError(f"reward must be one of {', '.join(REWARDS)}, not {named!r}")
    if inbox == SYNTHETIC:
        if scenarios is not None:
            raise ValueError("scenarios need the inbox that they are about: name it in inbox")
        return SyntheticEmailSearch(reward)
    if isinstance(inbox, Mapping) and isinstance(inbox.get("sha256"), str):
        return ImportedEmailSearch(_version(inbox, data_dir), str(inbox.get("name", "inbox")), scenarios, reward)
    if isinstance(inbox, str):
        return ImportedEmailSearch(_imported(inbox, data_dir), inbox, scenarios, reward)
    raise ValueError(f'inbox must be a name or {{"sha256": ...}}, not {inbox!r}')


def _version(inbox: Mapping[str, Json], data_dir: Path) -> Path:
    path = version_path(data_dir, inbox["sha256"])
    if not path.is_file():
        raise ValueError(f"the inbox with the SHA-256 {inbox['sha256']} is not in this data directory: {path}")
    return path


def _imported(inbox: str, data_dir: Path) -> Path:
    path = inbox_path(data_dir, inbox)
    if not path.is_file():
        raise ValueError(f"there is no inbox {inbox!r}; import one with: learnloop inbox import {inbox} PATH")
    return path


class _EmailSearch(ABC):
    """Rewards and reports, which both kinds of inbox share."""

    name = NAME
    default_max_turns = DEFAULT_MAX_TURNS
    default_judge = "reference"
    rubric = _RUBRIC

    def __init__(self, reward: Reward = default) -> None:
        self._reward = reward

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        return self._reward(outcome, score)

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the answer is right and has exactly the right sources, whatever the reward."""
        return outcome["finish"] == "answered" and score >= CORRECT_FROM and bool(outcome["sources_correct"])

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        if outcome["finish"] != "answered":
            return "it gave up" if outcome["finish"] == "gave_up" else ending(outcome)
        wrong = []
        if score is not None and score < CORRECT_FROM:
            right = scenario.reference.get("answer")
            wrong.append(f"wrong answer; expected {shortened(right, 100)}" if right else "wrong answer")
        if not outcome["sources_correct"] and (expected := scenario.reference.get("source_ids")):
            cited = f"cites {_listed(outcome['sources'])}" if outcome["sources"] else "no source cited"
            wrong.append(f"{cited}; expected {_listed(expected)}")
        return ", and ".join(wrong) or None

    def solution(self, scenario: Scenario) -> list[ToolCall]:
        """Return calls that search for the sources by what the question says, read them, and give the answer."""
        sources, turns = list(scenario.reference["source_ids"]), list[ToolCall]()
        ids_in_hits: set[str] = set()
        for index, id in enumerate(sources):
            room = DEFAULT_MAX_TURNS - 1 - (len(sources) - index) - len(turns)
            searches = self._searches(scenario, id) if id not in ids_in_hits and room > 0 else []
            for search in searches[-room:]:  # the last one finds the source
                turns.append(ToolCall(SEARCH.name, search.arguments))
                ids_in_hits |= search.ids
            turns.append(ToolCall(READ.name, {"email_id": id}))
        return [*turns, ToolCall(ANSWER.name, {"answer": scenario.reference["answer"], "sources": sources})]

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> EmailEpisode:
        return EmailEpisode(scenario, self._inbox_of(scenario), max_turns or DEFAULT_MAX_TURNS)

    @abstractmethod
    def _searches(self, scenario: Scenario, email_id: str) -> list[Search]:
        """Return the searches of a demonstration; the last one finds the email. Empty if none does."""

    @abstractmethod
    def _inbox_of(self, scenario: Scenario) -> Inbox:
        """Return the inbox that the scenario is about."""

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        return {
            "answer": outcome["answer"],
            "source_ids": outcome["sources"],
            "success": outcome["finish"] == "answered",
            "note": _note(outcome),
        }


class SyntheticEmailSearch(_EmailSearch):
    """Questions that each have their own invented inbox, generated from its address."""

    synthetic = True

    def __init__(self, reward: Reward = default) -> None:
        super().__init__(reward)
        self._inbox = lru_cache(maxsize=_KEPT_WORLDS)(_synthetic_inbox)

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        return [synthetic.make_world(split, seed, index).scenario(split) for index in range(start, start + count)]

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for a question about the synthetic inbox at `inbox_address`."""
        address = str(task.get("inbox_address", ""))
        inbox = synthetic.parse_address(address)
        if inbox is None:
            example = synthetic.address_of("test", 0, 17)
            raise ValueError(f"inbox_address must name a synthetic inbox such as {example}, not {address!r}")
        world = synthetic.make_world(*inbox)
        return Scenario(
            id=f"ask:{address}",
            split=inbox[0],
            task={"question": _question(task), "inbox_address": address, "query_date": _date(task, world.query_date)},
        )

    def _searches(self, scenario: Scenario, email_id: str) -> list[Search]:
        return search_by_words(self._inbox_of(scenario), scenario.task["question"], email_id, mailbox=None)

    def _inbox_of(self, scenario: Scenario) -> Inbox:
        return self._inbox(scenario.task["inbox_address"])

    def close(self) -> None:
        self._inbox.cache_clear()


class ImportedEmailSearch(_EmailSearch):
    """One inbox file, with given questions or those from the file next to it."""

    def __init__(self, path: Path, name: str, scenarios: Json | None = None, reward: Reward = default) -> None:
        """Raises ValueError if the file is not an inbox or the given questions are invalid."""
        super().__init__(reward)
        try:
            self._inbox = Inbox(path)
        except InboxError as error:
            raise ValueError(str(error)) from error
        self._path = path
        self._name = name
        self._address = f"{name}@{synthetic.DOMAIN}"
        self._given: list[Scenario] | None = None
        if scenarios is not None:
            try:
                self._given = questions.given_questions(scenarios, self._address, self._today(), self._inbox.id_of)
            except ValueError:
                self._inbox.close()
                raise

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        return list(questions.draw(self.questions, split, count, seed, start))

    @cached_property
    def questions(self) -> list[Scenario]:
        """All questions about the inbox. They are read once, so that a run keeps the same ones throughout. Raises
        ValueError."""
        if self._given is not None:
            return self._given
        path = questions_path(self._path)
        if not path.is_file():
            raise ValueError(f"inbox {self._name!r} has no questions to learn from. {self._remedy()}")
        return questions.read_questions(path, self._address, self._today(), self._inbox.id_of)

    def _remedy(self) -> str:
        if self._path.stem == self._name:  # a file in the data directory, and not stored under the hash of its emails
            return f"Write them to {questions_path(self._path).name}."
        return (
            f"Make some with POST /inboxes/{self._name}/questions (on the dashboard's Data page: Make questions), or "
            "store your own with POST /scenarios."
        )

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for any question about this inbox."""
        address = str(task.get("inbox_address") or self._address)
        if self._inbox.shared and not self._inbox.knows(address):
            raise ValueError(f"inbox_address must name a mailbox of this inbox, not {address!r}")
        return Scenario(
            id=f"ask:{self._path.stem}",
            split="test",
            task={
                "question": _question(task),
                "inbox_address": address,
                "query_date": _date(task, self._today()),
            },
        )

    def _searches(self, scenario: Scenario, email_id: str) -> list[Search]:
        mailbox = scenario.task["inbox_address"] if self._inbox.shared else None
        return searches_with_filters(self._inbox, scenario.task["question"], email_id, mailbox, scenario.id)

    def _inbox_of(self, scenario: Scenario) -> Inbox:
        return self._inbox

    def close(self) -> None:
        self._inbox.close()

    def _today(self) -> str:
        return (today_of(self._inbox.mails_by_day()) or datetime.now(UTC).date()).isoformat()


def _config_for(task: Mapping[str, Json], config: Mapping[str, Json], data_dir: Path) -> Mapping[str, Json]:
    """Return the config for the task: a real address selects the imported inbox that has email from or to it. Raises
    UnknownScenario if none has."""
    address = task.get("inbox_address")
    if not address or config.get("inbox", SYNTHETIC) != SYNTHETIC or synthetic.parse_address(address) is not None:
        return config
    inbox = _inbox_with(data_dir, address)
    if inbox is None:
        raise UnknownScenario(f"No inbox here has email of {address}. Import it: learnloop inbox import NAME PATH")
    return {"inbox": inbox}


def _inbox_with(data_dir: Path, address: str) -> str | None:
    """Return the name of the first imported inbox with email from or to this address; None if there is none."""
    for path in sorted((data_dir / "inboxes").glob("*.sqlite")):
        with suppress(InboxError), closing(Inbox(path)) as inbox:
            if inbox.knows(address):
                return path.stem
    return None


_TASK: Mapping[str, Json] = {
    "type": "object",
    "required": ["question"],
    "properties": {
        "question": {
            "type": "string",
            "title": "Question",
            "maxLength": 10_000,
            "examples": ["On which day is the launch of Masibe?"],
        },
        "inbox_address": {
            "type": "string",
            "title": "Mailbox (email address)",
            "maxLength": 320,
            "description": "The address of the inbox to search. An imported inbox of one person needs none.",
            "examples": [synthetic.address_of("test", 0, 1)],
        },
        "query_date": {
            "type": "string",
            "format": "date",
            "title": "Date on which it is asked",
            "maxLength": 40,
            "description": "By default a date near the newest email.",
            "examples": ["2026-03-04"],
        },
    },
}
TRAITS = Traits(
    description="Answers questions by searching a mailbox, and names the emails that the answer rests on.",
    datasets={"inbox": (SYNTHETIC,), "scenarios": ()},
    asked_without=frozenset({"scenarios"}),
    task=_TASK,
    repeats=True,
    milestones={
        "found_source": "never found the source",
        "read_source": "found the source and did not read it",
        "cites_source": "read the source and did not cite it",
        "sources_correct": "cited a source, but not exactly the right ones",
    },
    config_for=_config_for,
)


def _note(outcome: Outcome) -> str | None:
    """Explain why there is no answer, or what limits it; None if there is nothing to explain."""
    match outcome["finish"]:
        case "answered":
            return None if outcome["found"] else "No search found an email, so the answer has no source in the inbox."
        case "gave_up":
            return "The agent found no answer in the inbox."
        case "out_of_turns":
            return f"The agent gave no answer within {outcome['max_turns']} turns."
        case "full_context":
            return "The agent gave no answer before its conversation filled the model's context."
        case _:
            return f"The agent ended with a malformed tool call: {outcome['detail'] or 'it made none'}"


def _listed(ids: Sequence[str]) -> str:
    """Return the first of the ids, and how many more there are."""
    listed = ", ".join(shortened(id, 40) for id in ids[:_SHOWN_SOURCES])
    return listed if len(ids) <= _SHOWN_SOURCES else f"{listed} and {len(ids) - _SHOWN_SOURCES} more"


def _synthetic_inbox(address: str) -> Inbox:
    inbox = synthetic.parse_address(address)
    if inbox is None:
        raise ValueError(f"{address!r} names no synthetic inbox")
    return Inbox.in_memory(synthetic.make_world(*inbox).emails)


def _question(task: Mapping[str, Json]) -> str:
    question = task.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("question must be a non-empty text")
    return question.strip()


def _date(task: Mapping[str, Json], default: str) -> str:
    query_date = task.get("query_date")
    if not query_date:
        return default
    try:
        return datetime.fromisoformat(str(query_date)).date().isoformat()
    except ValueError as error:
        raise ValueError(f"query_date must be a date such as 2026-03-14, not {query_date!r}") from error

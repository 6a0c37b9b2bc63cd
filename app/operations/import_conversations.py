"""Conversations that exist already: what was liked becomes demonstrations, what was disliked becomes tasks.

The unit of the splits is the user. Demonstrations come from users of the training split only, and no demonstration asks
what a held-out task asks.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Literal

from pydantic import ValidationError

from learnloop_service.app.agent_sessions.consented import tool_results
from learnloop_service.app.datasets.conversation_forms import ImportedConversation, Unusable, conversation
from learnloop_service.app.datasets.conversation_opinions import NoThreshold, Opinion, Scale, opinions
from learnloop_service.app.datasets.demonstrations import checked, faults_of
from learnloop_service.app.datasets.tables import BadTable, json_lines, json_rows, json_text
from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.operations.imported import SPLITS, Imported, NothingToImport, splits_of
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.own_agent.environment import NAME as OWN_AGENT

Unrated = Literal["leave_out", "demonstrations", "tasks"]
IDS = {"demonstrations": "demonstration.", "scenarios": "task."}
"""Prefixes of the ids of imported rows, by the kind of document."""
_MAX_USER = 256
_EXAMINED_LINES = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to read a file of conversations."""

    opinion: str | None = None
    """Name of the field or score that counts; None for all that are recognised."""
    threshold: float | None = None
    user: str | None = None
    """Name of the field with the user's key; None for the usual ones."""
    unrated: Unrated = "leave_out"


@dataclass(frozen=True, slots=True)
class _Read:
    """A conversation of the file, with its opinions."""

    line: int
    talk: ImportedConversation
    opinions: Sequence[Opinion]
    owner: str
    """Hash of the user, or of the conversation itself if it has none."""


@dataclass(slots=True)
class ConversationImport(Imported):
    """The demonstrations and tasks of a file of conversations."""

    kind: Literal["conversations", "questions"] = "conversations"
    environment: str = OWN_AGENT
    forms: Counter[str] = field(default_factory=Counter)
    opinions: Counter[str] = field(default_factory=Counter)
    without_user: int = 0

    def details(self) -> Mapping[str, Json]:
        return {
            "conversations": self.forms.total(),
            "forms": dict(self.forms),
            "users": len(self.users),
            "without_user": self.without_user,
            **{kind: self.opinions[kind] for kind in ("liked", "disliked", "unrated")},
        }


def holds_conversations(content: bytes) -> bool:
    """Return whether the first lines of a file are conversations: with messages, or with opinions."""
    with suppress(BadTable):
        for _, value, _ in islice(json_rows(content) or (), _EXAMINED_LINES):
            with suppress(Unusable):
                talk = conversation(value)
                if opinions(value) or talk.form == "sharegpt" or "messages" in value or isinstance(value, list):
                    return True
    return False


def read_conversations(content: bytes, options: Wanted, hash_of: Callable[[str], str]) -> ConversationImport:
    """Read a JSON Lines file, or a JSON list, of conversations. Raises NothingToImport."""
    try:
        content = json_text(content)
    except BadTable as error:
        raise NothingToImport(str(error)) from error
    imported, conversations = ConversationImport(), list[_Read]()
    for number, value, wrong in json_lines(content):
        imported.lines += 1
        try:
            conversations.append(_read(number, value, wrong, options, hash_of, imported))
        except Unusable as unusable:
            imported.leave_out(number, str(unusable))
    if not conversations:
        why = "; ".join(f"line {lines[0]}: {reason}" for reason, lines in imported.left_out.items())
        raise NothingToImport(f"no line is a conversation. {why[:500]}")
    try:
        scale = Scale.of([opinion for read in conversations for opinion in read.opinions], options.threshold)
    except NoThreshold as error:
        raise NothingToImport(str(error), "threshold") from error
    rated = [(read, _verdict(read, scale, options, imported)) for read in conversations]
    splits = splits_of((read.owner for read in conversations), (read.owner for read, liked in rated if liked is False))
    for read, liked in rated:
        if liked is False:
            _add_task(read, splits, imported)
    if not {task["split"] for task in imported.tasks} >= set(SPLITS):
        # A set of tasks needs all three splits, and fewer than three users cannot fill them.
        few = [read.line for read, liked in rated if liked is False]
        imported.left_out |= {"its task was disliked, by too few users for three splits": few} if few else {}
        imported.tasks, imported.owners = [], {}
    held_out = {_text(task["task"]["messages"]) for task in imported.tasks if task["split"] != "train"}
    for read, liked in rated:
        if liked:
            _add_demonstration(read, splits, held_out, imported)
    return imported


def _read(
    line: int,
    value: Json,
    wrong: str | None,
    options: Wanted,
    hash_of: Callable[[str], str],
    imported: ConversationImport,
) -> _Read:
    """Read one line. Raises Unusable."""
    if wrong is not None:
        raise Unusable(wrong)
    talk = conversation(value, options.user)
    if talk.user is not None and len(talk.user) > _MAX_USER:
        raise Unusable(f"its user's key has more than {_MAX_USER} characters")
    imported.forms[talk.form] += 1
    if talk.user is None:
        imported.without_user += 1
        return _Read(line, talk, opinions(value, options.opinion), sha256(_text(talk.messages).encode()).hexdigest())
    owner = hash_of(talk.user)
    imported.users.add(owner)
    return _Read(line, talk, opinions(value, options.opinion), owner)


def _verdict(read: _Read, scale: Scale, options: Wanted, imported: ConversationImport) -> bool | None:
    """Return whether the conversation becomes a demonstration or a task; None if neither."""
    liked = scale.liked(read.opinions)
    imported.opinions["unrated" if liked is None else "liked" if liked else "disliked"] += 1
    if liked is not None:
        return liked
    if scale.disagrees(read.opinions):
        imported.leave_out(read.line, "its opinions contradict each other")
    elif options.unrated == "leave_out":
        imported.leave_out(read.line, "it has no opinion")
    else:
        return options.unrated == "demonstrations"
    return None


def _add_task(read: _Read, splits: dict[str, Split], imported: ConversationImport) -> None:
    """Add the last message of the user, with the conversation before it, as a task."""
    messages = read.talk.messages
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    reply = next((message.get("content") for message in reversed(messages) if message["role"] == "assistant"), None)
    task = {
        "messages": list(messages[: last + 1]),
        "tools": list(read.talk.tools),
        "tool_results": list(tool_results(messages)),
    }
    id = f"task.{sha256(_text(task['messages']).encode()).hexdigest()[:32]}"
    if all(message["role"] != "assistant" for message in messages[last:]):
        imported.leave_out(read.line, "nothing was replied to the last message of the user")
    elif id in imported.owners:
        imported.leave_out(read.line, "it asks what an earlier one asks")
    else:
        reference = {"disliked": reply} | ({"answer": read.talk.expected} if read.talk.expected else {})
        imported.tasks.append({"id": id, "split": splits[read.owner], "task": task, "reference": reference})
        imported.owners[id] = read.owner


def _add_demonstration(read: _Read, splits: dict[str, Split], held_out: set[str], imported: ConversationImport) -> None:
    recorded = read.talk.messages
    messages = [
        message | {"weight": 0} if message["role"] == "assistant" and index < read.talk.prompt_messages else message
        for index, message in enumerate(recorded)
    ]
    id = f"demonstration.{sha256(_text(recorded).encode()).hexdigest()[:32]}"
    questions = {_text(recorded[: index + 1]) for index, message in enumerate(recorded) if message["role"] == "user"}
    if splits[read.owner] != "train":
        imported.leave_out(read.line, "it was liked, by a user who is held out")
    elif questions & held_out:
        imported.leave_out(read.line, "it was liked, and asks what a held-out task asks")
    elif id in imported.owners:
        imported.leave_out(read.line, "it repeats an earlier one")
    else:
        tools = {"tools": list(read.talk.tools)} if read.talk.tools else {}
        try:
            imported.demonstrations.append(checked({"messages": messages, **tools}) | {"id": id})
            imported.owners[id] = read.owner
        except ValidationError as error:
            imported.leave_out(read.line, f"it was liked, but cannot be learned: {next(faults_of(error))}")


def _text(value: Json) -> str:
    text: str = canonical(value)
    return text

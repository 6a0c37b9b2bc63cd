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

from learnloop_service.app.agent_sessions.traffic import tool_results
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
"""How the ids of what was made begin, by the kind of document."""
_MAX_USER = 256
_EXAMINED_LINES = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a file is to be understood."""

    opinion: str | None = None
    """Name of the field or score that counts; None: all that are known."""
    threshold: float | None = None
    user: str | None = None
    """Name of the field with the user's key; None: those that are usual."""
    unrated: Unrated = "leave_out"


@dataclass(frozen=True, slots=True)
class _Read:
    line: int
    talk: ImportedConversation
    said: Sequence[Opinion]
    owner: str
    """Hash of the user, or of the conversation itself if it has none."""


@dataclass(slots=True)
class ConversationImport(Imported):
    """What a file of conversations has become."""

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


def read_conversations(content: bytes, wanted: Wanted, hash_of: Callable[[str], str]) -> ConversationImport:
    """Read a JSON Lines file, or a JSON list, of conversations. Raises NothingToImport."""
    try:
        content = json_text(content)
    except BadTable as error:
        raise NothingToImport(str(error)) from error
    made, found = ConversationImport(), list[_Read]()
    for number, value, wrong in json_lines(content):
        made.lines += 1
        try:
            found.append(_read(number, value, wrong, wanted, hash_of, made))
        except Unusable as unusable:
            made.leave_out(number, str(unusable))
    if not found:
        why = "; ".join(f"line {lines[0]}: {reason}" for reason, lines in made.left_out.items())
        raise NothingToImport(f"no line is a conversation. {why[:500]}")
    try:
        scale = Scale.of([each for read in found for each in read.said], wanted.threshold)
    except NoThreshold as error:
        raise NothingToImport(str(error), "threshold") from error
    rated = [(each, _verdict(each, scale, wanted, made)) for each in found]
    splits = splits_of((each.owner for each in found), (each.owner for each, liked in rated if liked is False))
    for each, liked in rated:
        if liked is False:
            _add_task(each, splits, made)
    if not {each["split"] for each in made.tasks} >= set(SPLITS):
        # A set of tasks needs all three splits, and fewer than three users cannot fill them.
        few = [each.line for each, liked in rated if liked is False]
        made.left_out |= {"its task was disliked, by too few users for three splits": few} if few else {}
        made.tasks, made.owners = [], {}
    held_out = {_text(each["task"]["messages"]) for each in made.tasks if each["split"] != "train"}
    for each, liked in rated:
        if liked:
            _add_demonstration(each, splits, held_out, made)
    return made


def _read(
    line: int,
    value: Json,
    wrong: str | None,
    wanted: Wanted,
    hash_of: Callable[[str], str],
    made: ConversationImport,
) -> _Read:
    """Read one line. Raises Unusable."""
    if wrong is not None:
        raise Unusable(wrong)
    talk = conversation(value, wanted.user)
    if talk.user is not None and len(talk.user) > _MAX_USER:
        raise Unusable(f"its user's key has more than {_MAX_USER} characters")
    made.forms[talk.form] += 1
    if talk.user is None:
        made.without_user += 1
        return _Read(line, talk, opinions(value, wanted.opinion), sha256(_text(talk.messages).encode()).hexdigest())
    owner = hash_of(talk.user)
    made.users.add(owner)
    return _Read(line, talk, opinions(value, wanted.opinion), owner)


def _verdict(read: _Read, scale: Scale, wanted: Wanted, made: ConversationImport) -> bool | None:
    """Return whether the conversation becomes a demonstration or a task; None if neither."""
    liked = scale.liked(read.said)
    made.opinions["unrated" if liked is None else "liked" if liked else "disliked"] += 1
    if liked is not None:
        return liked
    if scale.disagrees(read.said):
        made.leave_out(read.line, "its opinions contradict each other")
    elif wanted.unrated == "leave_out":
        made.leave_out(read.line, "it has no opinion")
    else:
        return wanted.unrated == "demonstrations"
    return None


def _add_task(read: _Read, splits: dict[str, Split], made: ConversationImport) -> None:
    """Add what was asked last, with what was said before, as a task."""
    messages = read.talk.messages
    last = max(place for place, each in enumerate(messages) if each["role"] == "user")
    reply = next((each.get("content") for each in reversed(messages) if each["role"] == "assistant"), None)
    task = {
        "messages": list(messages[: last + 1]),
        "tools": list(read.talk.tools),
        "tool_results": list(tool_results(messages)),
    }
    id = f"task.{sha256(_text(task['messages']).encode()).hexdigest()[:32]}"
    if all(each["role"] != "assistant" for each in messages[last:]):
        made.leave_out(read.line, "nothing was replied to the last message of the user")
    elif id in made.owners:
        made.leave_out(read.line, "it asks what an earlier one asks")
    else:
        reference = {"disliked": reply} | ({"answer": read.talk.expected} if read.talk.expected else {})
        made.tasks.append({"id": id, "split": splits[read.owner], "task": task, "reference": reference})
        made.owners[id] = read.owner


def _add_demonstration(read: _Read, splits: dict[str, Split], held_out: set[str], made: ConversationImport) -> None:
    given = read.talk.messages
    messages = [
        each | {"weight": 0} if each["role"] == "assistant" and place < read.talk.prompt_messages else each
        for place, each in enumerate(given)
    ]
    id = f"demonstration.{sha256(_text(given).encode()).hexdigest()[:32]}"
    asked = {_text(given[: place + 1]) for place, each in enumerate(given) if each["role"] == "user"}
    if splits[read.owner] != "train":
        made.leave_out(read.line, "it was liked, by a user who is held out")
    elif asked & held_out:
        made.leave_out(read.line, "it was liked, and asks what a held-out task asks")
    elif id in made.owners:
        made.leave_out(read.line, "it repeats an earlier one")
    else:
        tools = {"tools": list(read.talk.tools)} if read.talk.tools else {}
        try:
            made.demonstrations.append(checked({"messages": messages, **tools}) | {"id": id})
            made.owners[id] = read.owner
        except ValidationError as error:
            made.leave_out(read.line, f"it was liked, but cannot be learned: {next(faults_of(error))}")


def _text(value: Json) -> str:
    text: str = canonical(value)
    return text

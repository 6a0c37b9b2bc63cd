"""Conversations that exist already: what was liked becomes demonstrations, what was disliked becomes tasks.

The unit of the splits is the user. Demonstrations come from users of the training split only, and no demonstration asks
what a held-out task asks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, get_args

from pydantic import ValidationError

from app.agent_sessions.task_draw import split_of
from app.agent_sessions.traffic import tool_results
from app.datasets.conversation_forms import Conversation, Unusable, conversation
from app.datasets.conversation_opinions import Opinion, Scale, opinions
from app.datasets.demonstrations import checked, said
from app.db.json_text import canonical, flaw
from environment.base import Split
from environment.json_type import Json
from environment.own_agent.environment import NAME as OWN_AGENT
from training.protocol import strict_json

Unrated = Literal["leave_out", "demonstrations", "tasks"]
IDS = {"demonstrations": "demonstration.", "scenarios": "task."}
"""How the ids of what was made begin, by the kind of document."""
ENVIRONMENTS = {"demonstrations": "", "scenarios": OWN_AGENT}
"""The environment that it is for, by the kind of document."""
_SPLITS: Sequence[Split] = get_args(Split)
_GZIP = b"\x1f\x8b"
_NAMED_LINES = 5
_MAX_USER = 256


class NoConversations(ValueError):
    """Nothing in the file can be taken; the message says why."""


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
    talk: Conversation
    said: Sequence[Opinion]
    owner: str
    """Hash of the user, or of the conversation itself if it has none."""


@dataclass(slots=True)
class Imported:
    """What a file has become."""

    lines: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    opinions: Counter[str] = field(default_factory=Counter)
    users: set[str] = field(default_factory=set)
    without_user: int = 0
    demonstrations: list[dict[str, Json]] = field(default_factory=list)
    tasks: list[dict[str, Json]] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """Hash of the user by id of a demonstration or task."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the lines by the reason why they were left out."""

    def leave_out(self, line: int, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(line)

    def reasons(self) -> list[dict[str, Json]]:
        """Return the reasons, the most frequent first, with their first lines."""
        ordered = sorted(self.left_out.items(), key=lambda item: -len(item[1]))
        return [{"reason": why, "count": len(lines), "lines": lines[:_NAMED_LINES]} for why, lines in ordered]


def read_conversations(content: bytes, wanted: Wanted, hash_of: Callable[[str], str]) -> Imported:
    """Read a JSON Lines file, or a JSON list, of conversations. Raises NoConversations, NoThreshold."""
    if content.startswith(_GZIP):
        raise NoConversations("the file is compressed; unpack it first")
    made, found = Imported(), list[_Read]()
    for number, raw in _lines(content):
        made.lines += 1
        try:
            found.append(_read(number, raw, wanted, hash_of, made))
        except Unusable as unusable:
            made.leave_out(number, str(unusable))
    if not found:
        why = "; ".join(f"line {lines[0]}: {reason}" for reason, lines in made.left_out.items())
        raise NoConversations(f"no line is a conversation. {why[:500]}" if why else "the file is empty")
    scale = Scale.of([each for read in found for each in read.said], wanted.threshold)
    rated = [(each, _verdict(each, scale, wanted, made)) for each in found]
    splits = _splits(found, [each for each, liked in rated if liked is False])
    for each, liked in rated:
        if liked is False:
            _add_task(each, splits, made)
    if not {each["split"] for each in made.tasks} >= set(_SPLITS):
        # A set of tasks needs all three splits, and fewer than three users cannot fill them.
        few = [each.line for each, liked in rated if liked is False]
        made.left_out |= {"its task was disliked, by too few users for three splits": few} if few else {}
        made.tasks, made.owners = [], {}
    held_out = {_text(each["task"]["messages"]) for each in made.tasks if each["split"] != "train"}
    for each, liked in rated:
        if liked:
            _add_demonstration(each, splits, held_out, made)
    return made


def _lines(content: bytes) -> Iterator[tuple[int, Json]]:
    """Yield the lines of a file, or the items of the JSON list that it is, numbered from 1. A line is bytes."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content.lstrip()[:1] == b"[":
        try:
            whole = strict_json.loads(content)
        except ValueError:
            whole = None
        if isinstance(whole, list) and not all(isinstance(each, dict) and "role" in each for each in whole):
            yield from enumerate(whole, start=1)
            return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line.removesuffix(b"\r")


def _read(line: int, raw: Json, wanted: Wanted, hash_of: Callable[[str], str], made: Imported) -> _Read:
    """Read one line. Raises Unusable."""
    try:
        value = strict_json.loads(raw) if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        raise Unusable("it is not UTF-8") from None
    except ValueError:
        raise Unusable("it is not JSON") from None
    if (why := flaw(value)) is not None:
        raise Unusable(why)
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


def _verdict(read: _Read, scale: Scale, wanted: Wanted, made: Imported) -> bool | None:
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


def _splits(found: Sequence[_Read], disliked: Sequence[_Read]) -> dict[str, Split]:
    """Return the split of each user: by the hash, except that a split without tasks gets a user who has some."""
    splits = {each.owner: split_of(each.owner) for each in found}
    with_tasks = sorted({each.owner for each in disliked}, key=lambda owner: sha256(owner.encode()).digest())
    for wanted in _SPLITS:
        counts = Counter(splits[owner] for owner in with_tasks)
        if not counts[wanted] and (spare := [each for each in with_tasks if counts[splits[each]] > 1]):
            splits[spare[0]] = wanted
    return splits


def _add_task(read: _Read, splits: dict[str, Split], made: Imported) -> None:
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


def _add_demonstration(read: _Read, splits: dict[str, Split], held_out: set[str], made: Imported) -> None:
    given = read.talk.messages
    messages = [
        each | {"weight": 0} if each["role"] == "assistant" and place < read.talk.shown else each
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
            made.leave_out(read.line, f"it was liked, but cannot be learned: {next(said(error))}")


def _text(value: Json) -> str:
    text: str = canonical(value)
    return text

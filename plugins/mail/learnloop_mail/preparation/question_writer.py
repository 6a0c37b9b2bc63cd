"""Writes questions about an inbox's emails with a language model.

Each reply is appended to a journal, so that an interrupted preparation only requests, and pays for, the rest.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import IO, Any

from learnloop_mail.preparation.question_sets import Question
from learnloop_mail.preparation.recipe import BadRecipe, Recipe
from learnloop_mail.preparation.template_questions import emails_in_random_order, topic_of
from learnloop_service.app.datasets.model_writer import NotWritten, completed, listed
from learnloop_service.app.datasets.store import canonical
from learnloop_service.environment.email_search.inbox import Email, Inbox
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.words import words_of
from learnloop_service.judges.base import JudgeModel, Models, UnknownModel
from learnloop_service.judges.llm import JudgeUnavailable

_PROMPT = files("learnloop_mail.preparation").joinpath("prompts/questions.txt").read_text(encoding="utf-8")
_PER_EMAIL = 2
_MAX_CHARACTERS = 1_000
"""Limit for a question, and for an answer."""
_MIN_BODY_CHARACTERS = 40
_MAX_BODY_CHARACTERS = 5_000
_TEXT = {"type": "string"}
_SCHEMA = {
    "type": "object",
    "properties": {
        "questions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"question": _TEXT, "answer": _TEXT, "how_realistic": {"type": "number"}},
                "required": ["question", "answer", "how_realistic"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["questions"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class WriterCounts:
    """Usage and rejects of question writing. `cost_usd` is None if the model's price is unknown."""

    emails: int = 0
    unusable: int = 0
    """Number of the model's replies that are not a list of questions."""
    unrealistic: int = 0
    repeated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0

    def add(self, entry: dict[str, Json]) -> None:
        """Add the usage of one reply of the model, from now or from an earlier preparation."""
        self.emails += 1
        self.unusable += entry["questions"] is None
        self.prompt_tokens += entry["prompt_tokens"]
        self.completion_tokens += entry["completion_tokens"]
        has_cost = self.cost_usd is not None and entry["cost_usd"] is not None
        self.cost_usd = self.cost_usd + entry["cost_usd"] if has_cost else None


class QuestionWriter:
    """Writes questions with one of the models; keeps its journals in `folder`."""

    def __init__(self, models: Models, folder: Path) -> None:
        self._models = models
        self._folder = folder

    def write(self, inbox: Inbox, hash: str, recipe: Recipe, advance: Any) -> tuple[list[Question], dict[str, Json]]:
        """Return the questions and their usage. Raises BadRecipe if there is no such model, or NotWritten."""
        try:
            model = self._models.model(recipe.question_model)
        except UnknownModel as error:
            raise BadRecipe(f"question_model: {error}") from error
        key = sha256(canonical([hash, model.name, _PROMPT, recipe.question_seed, _PER_EMAIL]).encode()).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True)
        journal = self._folder / f"{key}.jsonl"
        collected = _Collected(recipe)
        entries = _entries(journal)
        with journal.open("a", encoding="utf-8") as lines:
            lines.write("\n")  # the last line may be incomplete
            asyncio.run(_write(model, inbox, recipe, entries, collected, lines, advance))
        if not collected.questions:
            raise NotWritten(f"{model.name} wrote no question that can be used, about {collected.counts.emails} emails")
        counts = collected.counts
        return collected.questions, {
            "model": model.name,
            **{name: getattr(counts, name) for name in counts.__slots__},
        }


class _Collected:
    """The distinct questions so far."""

    def __init__(self, recipe: Recipe) -> None:
        self.questions: list[Question] = []
        self.counts = WriterCounts()
        self._wanted = recipe.question_count
        self._owner = recipe.inbox
        self._min_realism = recipe.min_realism or 0.0
        self._words = set[str]()

    @property
    def enough(self) -> bool:
        return len(self.questions) >= self._wanted

    def take(self, email: Email, entry: dict[str, Json]) -> None:
        """Add what the model wrote about an email. Its cost counts even if there were enough questions before."""
        self.counts.add(entry)
        for number, row in enumerate(entry["questions"] or ()):
            words = words_of(row["question"])
            if row["how_realistic"] < self._min_realism:
                self.counts.unrealistic += 1
            elif words in self._words:
                self.counts.repeated += 1
            elif not self.enough:
                self._words.add(words)
                question = Question(
                    id=f"{email.id}-{number}",
                    question=row["question"],
                    answer=row["answer"],
                    sources=(email.message_id,),
                    inbox_address=self._owner,
                    topic=topic_of(email),
                )
                self.questions.append(question)


async def _write(
    model: JudgeModel,
    inbox: Inbox,
    recipe: Recipe,
    entries: dict[str, dict[str, Json]],
    collected: _Collected,
    journal: IO[str],
    advance: Any,
) -> None:
    """Ask about emails, several concurrently, until there are enough questions.

    Replies are used in the order of the emails, so that a resumed preparation makes the same set.
    """
    emails = (
        candidate for candidate in emails_in_random_order(inbox, recipe.question_seed) if _is_worth_asking(candidate)
    )
    while not collected.enough and (batch := list(islice(emails, model.concurrency))):
        requests = [_entry_about(model, candidate, recipe.inbox, entries, journal) for candidate in batch]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        for email, entry in zip(batch, answers, strict=True):
            if isinstance(entry, JudgeUnavailable):
                raise NotWritten(
                    f"{model.name} cannot be asked: {entry}. What it wrote so far is kept: run the command again"
                )
            if isinstance(entry, BaseException):
                raise entry
            collected.take(email, entry)
        advance("questions", len(collected.questions), recipe.question_count)


def _is_worth_asking(email: Email) -> bool:
    return len(email.body) >= _MIN_BODY_CHARACTERS


async def _entry_about(
    model: JudgeModel, email: Email, owner: str | None, entries: dict[str, dict[str, Json]], journal: IO[str]
) -> dict[str, Json]:
    """Return the journal's entry about the email, or ask the model for a new one."""
    if (entry := entries.get(email.id)) is not None:
        return entry
    completion = await completed(model, _prompt(email, owner), _SCHEMA)
    entry = {
        "email": email.id,
        "questions": _parsed(completion.text),
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "cost_usd": completion.cost_usd,
    }
    journal.write(json.dumps(entry, ensure_ascii=False) + "\n")
    journal.flush()
    return entry


def _prompt(email: Email, owner: str | None) -> str:
    return _PROMPT.format(
        count=_PER_EMAIL,
        owner=owner or "one of those whom the email is to",
        sender=email.sender,
        to=", ".join(email.to),
        date=f"{email.sent_at:%-d %B %Y}" if email.sent_at else "unknown",
        subject=email.subject,
        body=email.body[:_MAX_BODY_CHARACTERS],
    )


def _parsed(text: str) -> list[dict[str, Json]] | None:
    """Parse the questions in a model's reply; None if it is not a list of questions."""
    rows = listed(text, "questions")
    return None if rows is None else list(_usable(rows))[:_PER_EMAIL]


def _usable(rows: list[Json]) -> Iterator[dict[str, Json]]:
    for row in rows:
        if not isinstance(row, dict):
            continue
        question, answer = row.get("question"), row.get("answer")
        if not all(isinstance(text, str) and 0 < len(text.strip()) <= _MAX_CHARACTERS for text in (question, answer)):
            continue
        realism = row.get("how_realistic")
        rated = float(realism) if isinstance(realism, (int, float)) and 0 <= realism <= 1 else 0.0
        yield {"question": str(question).strip(), "answer": str(answer).strip(), "how_realistic": rated}


def _entries(journal: Path) -> dict[str, dict[str, Json]]:
    """Return the journal's entries by email id. An incomplete last line is skipped."""
    entries: dict[str, dict[str, Json]] = {}
    if journal.is_file():
        for line in journal.read_text(encoding="utf-8").split("\n"):
            with suppress(ValueError, KeyError):
                entry = json.loads(line)
                entries[entry["email"]] = entry
    return entries

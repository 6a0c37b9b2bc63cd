"""Prepares data: an inbox from emails, then questions about it. Results for the same inputs are reused.

The inbox depends on its sources and on the settings that choose emails; the questions depend on the inbox and on the
settings that choose or make questions. Each result is stored under the hash of everything it depends on, so that a
changed setting only repeats what depends on it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args

from learnloop_mail.preparation import enron, sources, table_files
from learnloop_mail.preparation.inbox_files import write_inbox_file
from learnloop_mail.preparation.mail_filter import FilterCounts, MailFilter, filtered
from learnloop_mail.preparation.question_sets import (
    Question,
    Selection,
    SplitCounts,
    halve,
    question_set,
    split_by_topic,
    topic_of_question,
)
from learnloop_mail.preparation.recipe import LLM, NONE, TEMPLATES, BadRecipe, Recipe
from learnloop_mail.preparation.template_questions import TemplateCounts, template_questions
from learnloop_mail.reading.importer import MailSourceError
from learnloop_service.app.cli.stage_bar import Advance
from learnloop_service.app.datasets import hub
from learnloop_service.app.datasets.store import DatasetStore, Prepared, Version, canonical
from learnloop_service.environment.base import Split
from learnloop_service.environment.email_search.inbox import Inbox
from learnloop_service.environment.json_type import Json

_DATA_SET = hub.RepositoryKind(
    "dataset",
    "data set",
    ("*.parquet", "*.arrow", "*.jsonl", "*.jsonl.gz", "*.ndjson", "*dataset_dict.json", "*state.json"),
)
_FORMAT = 1
"""Version of the results' format. Changing it invalidates all stored results."""
_INBOX_SETTINGS = ("inbox", "max_emails", "max_body_characters", "max_recipients", "drop_copies")
_SELECTION = ("limit", "held_out_limit", "shuffle_seed")
_DATASET_SETTINGS = ("inbox", "max_messages", "exclude_questions", "min_realism", *_SELECTION)
_MADE_SETTINGS = ("question_count", "question_seed", "question_model", *_SELECTION)

Element = TypeVar("Element")
Write = Callable[[Inbox, str, Recipe, Advance], tuple[list[Question], dict[str, Json]]]
"""Writes questions with a language model, given the inbox and its hash; returns the questions and what they cost."""


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub that data sets come from if they are not paths."""

    endpoint: str
    token: str | None
    cache: Path


class Preparation:
    """Prepares one recipe."""

    def __init__(self, recipe: Recipe, store: DatasetStore, from_hub: Hub, write: Write, advance: Advance) -> None:
        self._recipe = recipe
        self._store = store
        self._hub = from_hub
        self._write = write
        self._advance = advance
        self._done: list[str] = []
        self._contents: dict[str, str] = {}

    def run(self) -> Prepared:
        """Prepare the data.

        Raises BadRecipe, HubError, MailSourceError, DatasetError, InboxError, or errors of `write`. After an error
        nothing has changed, except that finished stages need not be repeated.
        """
        emails = [self._fetch(source) for source in self._recipe.sources]
        inbox = self._stage("inbox", self._settings(_INBOX_SETTINGS), emails, lambda: self._make_inbox(emails))
        scenarios = None if self._recipe.questions == NONE else self._questions(inbox["sha256"])
        counts = {"emails": inbox.pop("counts")} | ({"questions": scenarios.pop("counts")} if scenarios else {})
        version = Version(
            name=self._recipe.name,
            version=1,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            inbox=inbox,
            scenarios=scenarios,
            recipe=self._recipe.model_dump(mode="json"),
            sources=self._contents,
            counts=counts,
        )
        return Prepared(self._store.add_version(version), tuple(self._done))

    def _fetch(self, source: str) -> Path:
        """Return the source's path on disk, and record the hash of its content."""
        path = Path(source).expanduser()
        if hub.is_hub_id(source):
            path = hub.download(source, self._hub.endpoint, self._hub.token, self._hub.cache, _DATA_SET)
        elif not path.exists():
            raise MailSourceError(f"cannot read {source}: No such file or directory")
        self._contents[source] = sources.fingerprint(path, self._store)
        return path

    def _settings(self, names: Iterable[str]) -> dict[str, Json]:
        recipe = self._recipe.model_dump(mode="json")
        return {name: recipe[name] for name in names}

    def _stage(
        self, stage: str, settings: dict[str, Json], inputs: Json, make: Callable[[], dict[str, Json]]
    ) -> dict[str, Json]:
        """Return the stored result for these settings and inputs, or that of `make` if there is none."""
        hashes = sorted(self._contents.values()) if stage == "inbox" else inputs
        key = sha256(canonical([_FORMAT, stage, settings, hashes]).encode()).hexdigest()
        result = self._store.build(key)
        path = self._store.inbox_path if stage == "inbox" else self._store.scenarios_path
        if result is None or not path(result["sha256"]).is_file():
            result = make()
            self._store.keep_build(key, result)
            self._done.append(stage)
        return result

    def _make_inbox(self, paths: list[Path]) -> dict[str, Json]:
        reading, counts = sources.Reading(paths), FilterCounts()
        filters = MailFilter(**self._settings(_INBOX_SETTINGS))
        emails = self._counted("inbox", filtered(reading.emails(), filters, counts), reading.expected(), every=500)
        file = self._store.scratch()
        try:
            inbox = write_inbox_file(file, emails, shared=self._is_shared(paths))
            if not counts.kept:
                raise BadRecipe(f"no email passes the filter: {_listed(reading.counts() | asdict(counts))}")
            self._store.keep_inbox(file, inbox.sha256)
        finally:
            file.unlink(missing_ok=True)
        return {**asdict(inbox), "counts": reading.counts() | _nonzero(counts)}

    def _is_shared(self, paths: list[Path]) -> bool:
        """Return whether the inbox holds the mail of several people, as a data set does without the filter `inbox`."""
        return self._recipe.inbox is None and any(map(table_files.is_dataset, paths))

    def _counted(self, stage: str, elements: Iterable[Element], expected: int | None, every: int) -> Iterator[Element]:
        for number, element in enumerate(elements, start=1):
            if number % every == 1:
                self._advance(stage, number, expected)
            yield element

    def _questions(self, inbox: str) -> dict[str, Json]:
        kind = self._recipe.questions
        if kind in (TEMPLATES, LLM):
            settings = {"kind": kind, **self._settings(_MADE_SETTINGS)}
            return self._stage("questions", settings, [inbox], lambda: self._make_questions(inbox))
        path = self._fetch(kind)
        inputs = [inbox, self._contents[kind]]
        settings = self._settings(_DATASET_SETTINGS)
        return self._stage("questions", settings, inputs, lambda: self._take_questions(inbox, path))

    def _make_questions(self, hash: str) -> dict[str, Json]:
        recipe = self._recipe
        with closing(Inbox(self._store.inbox_path(hash))) as inbox:
            if recipe.questions == LLM:
                questions, usage = self._write(inbox, hash, recipe, self._advance)
            else:
                counts = TemplateCounts()
                drawn = template_questions(inbox, recipe.question_count, recipe.question_seed, counts)
                questions = list(self._counted("questions", drawn, recipe.question_count, every=20))
                usage = asdict(counts)
            return self._store_questions(split_by_topic(questions), inbox, usage)

    def _take_questions(self, hash: str, path: Path) -> dict[str, Json]:
        """Take the questions of a data set. A single held-out split is halved into validation and test."""
        recipe, counts = self._recipe, enron.QuestionCounts()
        filters = enron.QuestionFilter(recipe.inbox, recipe.max_messages, recipe.exclude_questions, recipe.min_realism)
        columns = enron.QUESTION_COLUMNS, enron.OPTIONAL_QUESTION_COLUMNS
        by_name = {
            split: list(enron.questions(split, table_files.rows(files, *columns), filters, counts))
            for split, files in table_files.splits(path).items()
        }
        splits: dict[Split, list[Question]] = {split: by_name[split] for split in get_args(Split) if split in by_name}
        held_out = splits.keys() - {"train"}
        if not held_out:
            splits = split_by_topic(splits.get("train", []))
        elif len(held_out) == 1:
            splits |= halve(splits[held_out.pop()])
        with closing(Inbox(self._store.inbox_path(hash))) as inbox:
            return self._store_questions(splits, inbox, _nonzero(counts))

    def _store_questions(
        self, splits: dict[Split, list[Question]], inbox: Inbox, counts: dict[str, Json]
    ) -> dict[str, Json]:
        left_out = SplitCounts()
        selection = Selection(**self._settings(_SELECTION))
        rows = question_set(splits, selection, lambda source: inbox.id_of(source) is not None, left_out)
        counts = counts | _nonzero(left_out)
        sizes = Counter(row["split"] for row in rows)
        if empty := [split for split in get_args(Split) if not sizes[split]]:
            summary = _listed(counts) or "none left out"
            shortage = f"no question is left for {', '.join(empty)}, of {len(rows)} in all ({summary})"
            raise BadRecipe(f"{shortage}. {self._why_empty(splits)}")
        return {
            "sha256": self._store.keep_scenarios(rows),
            **{split: sizes[split] for split in get_args(Split)},
            "counts": counts,
        }

    def _why_empty(self, splits: Mapping[Split, Sequence[Question]]) -> str:
        """Return why splits have no question, and what would fill them."""
        if self._recipe.questions not in (TEMPLATES, LLM):
            return (
                "Give questions for these splits about emails that the inbox has, or loosen the filters (docs/data.md)."
            )
        all_questions = [question for questions in splits.values() for question in questions]
        alternative = "or give questions of your own with their splits (`--questions`, docs/data.md)."
        if not all_questions:
            copies = "" if self._recipe.drop_copies else "leave out copies of emails (`--drop-copies`), "
            return (
                "The emails are too similar: a question names its email by subject and sender, or by subject and day, "
                "and no email is the only one with these. To get questions, add emails with other subjects, "
                f"{copies}{alternative}"
            )
        subjects = len({topic_of_question(question) for question in all_questions})
        noun = "1 subject" if subjects == 1 else f"{subjects} subjects"
        more = "raise `--question-count`, " if len(all_questions) >= self._recipe.question_count else ""
        return (
            f"The questions are about {noun}, and all questions about emails with the same subject go to one split: "
            "about 80% of the subjects to train, 10% to validation and 10% to test. About 30 subjects fill all three: "
            f"{more}add emails with other subjects, {alternative}"
        )


def _nonzero(counts: Any) -> dict[str, Json]:
    return {key: value for key, value in asdict(counts).items() if value}


def _listed(counts: dict[str, Json]) -> str:
    return ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items() if value)

"""The email agent's tools: what the policy reads, the messages for its mistakes, and the facts that are stored."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment.base import Scenario, ToolError
from learnloop_service.environment.email_search.inbox import Email, Inbox, write_inbox
from learnloop_service.environment.email_search.tools import TOOLS, EmailEpisode

SCENARIO = Scenario(
    id="s",
    split="test",
    task={"question": "What is the budget?", "inbox_address": "bo@b.example", "query_date": "2026-04-01"},
    reference={"answer": "40 euros", "source_ids": ["kudo"]},
)
EMAILS = (
    Email(
        "kudo",
        "<1>",
        "Mara Velin <mara@a.example>",
        ("bo@b.example",),
        datetime(2026, 3, 2, tzinfo=UTC),
        "Budget",
        "It is 40.",
    ),
    Email("lami", "<2>", "cy@c.example", ("bo@b.example",), None, "Long budget", "y" * 6_000, cc=("dee@d.example",)),
)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = Inbox.in_memory(EMAILS)
    yield opened
    opened.close()


@pytest.fixture
def episode(inbox: Inbox) -> EmailEpisode:
    return EmailEpisode(SCENARIO, inbox, max_turns=5)


def test_the_opening_names_inbox_date_turns_and_question(episode: EmailEpisode) -> None:
    system, user = episode.messages()
    assert system["role"] == "system"
    assert all(text in system["content"] for text in ("bo@b.example", "2026-04-01", "5 turns"))
    assert user == {"role": "user", "content": "What is the budget?"}


def test_tools_have_the_form_of_openai() -> None:
    for tool in TOOLS:
        function = tool.openai()["function"]
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])


async def test_the_way_to_a_right_answer(episode: EmailEpisode) -> None:
    hits = await episode.call("search_inbox", {"keywords": ["budget"], "sender": "mara", "sent_after": "2026-03-01"})
    assert hits.content == "kudo | Budget | Mara Velin | 2 Mar 2026"
    mail = await episode.call("read_email", {"email_id": "kudo"})
    assert mail.content == (
        "From: Mara Velin <mara@a.example>\nTo: bo@b.example\nDate: 2 Mar 2026\nSubject: Budget\n\nIt is 40."
    )
    end = await episode.call("return_final_answer", {"answer": " 40 euros ", "sources": ["kudo"]})
    assert end.final is True
    assert hits.final is False
    assert mail.final is False
    assert episode.outcome() == {
        "finish": "answered",
        "detail": "",
        "answer": "40 euros",
        "sources": ["kudo"],
        "turns": 3,
        "max_turns": 5,
        "found": 1,
        "found_source": True,
        "read_source": True,
        "read_invalid": False,
        "unknown_tool": False,
        "cites_source": True,
        "sources_correct": True,
    }


async def test_a_long_mail_is_cut_and_says_so(episode: EmailEpisode) -> None:
    text = (await episode.call("read_email", {"email_id": "lami"})).content
    assert text.endswith("y\n[1000 more characters]")
    assert "Cc: dee@d.example\nDate: undated" in text


async def test_nothing_found_is_said(episode: EmailEpisode) -> None:
    assert (
        await episode.call("search_inbox", {"keywords": ["zebra"]})
    ).content == "No mail holds all of these keywords."
    assert (await episode.call("read_email", {"email_id": "zebra"})).content == "There is no mail zebra."
    outcome = episode.outcome()
    assert outcome["found_source"] is False
    assert outcome["read_source"] is False
    assert outcome["read_invalid"] is True


async def test_text_that_has_no_utf8_form_finds_nothing(episode: EmailEpisode) -> None:
    assert "There is no mail" in (await episode.call("read_email", {"email_id": "\ud800"})).content
    hits = await episode.call("search_inbox", {"keywords": ["\ud800"], "sender": "\ud800"})
    assert hits.content == "No mail holds all of these keywords."


async def test_filters_given_as_null_or_empty_are_left_out(episode: EmailEpisode) -> None:
    hits = await episode.call("search_inbox", {"keywords": ["budget"], "sender": None, "sent_after": ""})
    assert len(hits.content.split("\n")) == 2


async def test_a_search_by_filter_alone_is_allowed(episode: EmailEpisode) -> None:
    assert (await episode.call("search_inbox", {"keywords": [], "sender": "mara"})).content.startswith("kudo |")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("delete_email", {}, "no tool 'delete_email'; there are: search_inbox, read_email, return_final_answer"),
        ("search_inbox", {}, "keywords must be a list of strings, not None"),
        ("search_inbox", {"keywords": "budget"}, "keywords must be a list of strings"),
        ("search_inbox", {"keywords": ["budget", 7]}, "keywords must be a list of strings"),
        ("search_inbox", {"keywords": []}, "needs at least one keyword"),
        ("search_inbox", {"keywords": ["x"], "sender": ["mara"]}, "sender must be a string"),
        ("search_inbox", {"keywords": ["x"], "sent_after": "last week"}, "sent_after must be a date such as"),
        ("search_inbox", {"keywords": ["x"], "sent_before": 20260101}, "sent_before must be a string"),
        ("search_inbox", {"keywords": ["x"], "sender": []}, "sender must be a string"),
        ("search_inbox", {"keywords": ["x"], "sent_after": 0}, "sent_after must be a string"),
        (
            "search_inbox",
            {"keywords": ["x"], "form": "mara"},
            "search_inbox has no argument form; it has: keywords, sender",
        ),
        ("read_email", {}, "email_id must be a string, not None"),
        ("read_email", {"email_id": 7}, "email_id must be a string, not 7"),
        ("return_final_answer", {"answer": "x"}, "sources must be a list of strings"),
        ("return_final_answer", {"answer": None, "sources": []}, "answer must be a string"),
    ],
)
async def test_bad_calls_are_tool_errors(
    episode: EmailEpisode, name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        await episode.call(name, arguments)
    assert episode.outcome()["finish"] == "open"
    assert episode.outcome()["turns"] == 1


@pytest.mark.parametrize(
    "answer", ["I don't know", "I don\u2019t know.", "i dont know.", "I do not know", " Unknown ", ""]
)
async def test_giving_up_is_no_answer(episode: EmailEpisode, answer: str) -> None:
    assert (await episode.call("return_final_answer", {"answer": answer, "sources": []})).final
    assert episode.outcome()["finish"] == "gave_up"


@pytest.mark.parametrize(
    ("sources", "correct"),
    [(["kudo"], True), (["kudo", "kudo"], True), (["kudo", "lami"], False), (["lami"], False), ([], False)],
)
async def test_sources_are_right_only_as_a_whole(episode: EmailEpisode, sources: list[str], correct: bool) -> None:
    await episode.call("return_final_answer", {"answer": "40", "sources": sources})
    outcome = episode.outcome()
    assert outcome["sources_correct"] == correct
    assert outcome["cites_source"] == ("kudo" in sources)


async def test_a_tool_that_does_not_exist_is_noted(episode: EmailEpisode) -> None:
    for name, unknown in (("read_email", False), ("delete_email", True)):
        with pytest.raises(ToolError):
            await episode.call(name, {})
        assert episode.outcome()["unknown_tool"] is unknown


def test_an_episode_may_end_without_an_answer(episode: EmailEpisode) -> None:
    episode.end("malformed", "not JSON")
    outcome = episode.outcome()
    assert outcome["finish"] == "malformed"
    assert outcome["detail"] == "not JSON"
    assert outcome["answer"] is None


async def test_episodes_on_one_inbox_file_share_nothing(tmp_path: Path) -> None:
    write_inbox(tmp_path / "inbox.sqlite", EMAILS)
    inbox = Inbox(tmp_path / "inbox.sqlite")
    episodes = [EmailEpisode(SCENARIO, inbox, max_turns=5) for _ in range(32)]
    await asyncio.gather(
        *(
            episode.call("read_email", {"email_id": "kudo" if number % 2 else "lami"})
            for number, episode in enumerate(episodes)
        )
    )
    assert [episode.outcome()["read_source"] for episode in episodes] == [False, True] * 16
    inbox.close()

"""Careless demonstrations of `email_search`, in which the most frequent choice is wrong at every decision.

Queries contain only the project, the first hit is opened whatever its subject is, sources are left out, and answers are
guessed. Every right choice occurs too, so that the loop can find and prefer it.
"""

import re
from random import Random

from learnloop_service.environment.base import Json
from learnloop_service.environment.email_search.environment import DEFAULT_MAX_TURNS
from learnloop_service.environment.email_search.inbox import Inbox
from learnloop_service.environment.email_search.synthetic import KINDS, World
from learnloop_service.environment.email_search.tools import ANSWER, READ, SEARCH, EmailEpisode
from scripts.tiny_base.careless import RecordedConversation, weighted

_VALUES = {kind.keyword: kind.sentences for kind in KINDS}


async def demonstrate(world: World, rng: Random) -> list[dict[str, Json]]:
    """Return the messages of one careless attempt at the world's question."""
    inbox = Inbox.in_memory(world.emails)
    demo = RecordedConversation(EmailEpisode(world.scenario("train"), inbox, DEFAULT_MAX_TURNS), rng)
    hits: list[str] = []
    opened: list[str] = []
    while not demo.over:
        if not hits:
            hits = _ids(await demo.call(SEARCH.name, keywords=_query(world, rng, first=demo.turns == 0)))
            if not hits and not demo.over and demo.turns > 1 and rng.random() < 0.15:
                await _answer(demo, "I don't know", [])
            continue
        choice = _choose(world, rng, hits, opened)
        if choice is None:
            if rng.random() < 0.3:
                hits = []
            else:
                await _guess(demo, world, rng, opened)
            continue
        opened.append(choice)
        text = await demo.call(READ.name, email_id=choice)
        if demo.over:
            break
        if choice == world.source_id:
            await _after_the_right_mail(demo, world, rng, opened)
        else:
            match weighted(rng, go_on=0.45, guess=0.25, search_again=0.1, give_up=0.2):
                case "guess":
                    await _answer(demo, _value_in(text, rng), _sources(rng, choice, opened))
                case "search_again":
                    hits = []
                case "give_up":
                    await _answer(demo, "I don't know", [])
    inbox.close()
    return demo.messages


def _query(world: World, rng: Random, *, first: bool) -> list[str]:
    other = rng.choice([email.subject.split()[0] for email in world.emails])
    wrong = rng.choice(("date", "person", "information", "mail", "name", rng.choice(KINDS).keyword))
    match weighted(rng, project=0.45, both=0.25, wrong=0.12 if first else 0.04, keyword=0.1, other=0.08):
        case "project":
            return [world.project]
        case "both":
            return [world.project, world.keyword]
        case "wrong":
            return [world.project, wrong]
        case "keyword":
            return [world.keyword]
        case _:
            return [other]


def _choose(world: World, rng: Random, hits: list[str], opened: list[str]) -> str | None:
    unopened = [hit for hit in hits if hit not in opened]
    if not unopened:
        return None
    match weighted(rng, first=0.5, right=0.25, any=0.25):
        case "right" if world.source_id in unopened:
            return world.source_id
        case "any":
            return rng.choice(unopened)
        case _:
            return unopened[0]


async def _after_the_right_mail(demo: RecordedConversation, world: World, rng: Random, opened: list[str]) -> None:
    match weighted(rng, answer=0.78, wrong=0.08, go_on=0.08, give_up=0.06):
        case "answer":
            await _answer(demo, world.answer, _sources(rng, world.source_id, opened))
        case "wrong":
            body = next(email.body for email in world.emails if email.id == world.source_id)
            await _answer(demo, _value_in(body, rng), _sources(rng, world.source_id, opened))
        case "give_up":
            await _answer(demo, "I don't know", [])


async def _guess(demo: RecordedConversation, world: World, rng: Random, opened: list[str]) -> None:
    body = next(email.body for email in world.emails if email.id == opened[-1])
    await _answer(demo, _value_in(body, rng), _sources(rng, opened[-1], opened))


async def _answer(demo: RecordedConversation, answer: str, sources: list[str]) -> None:
    if not demo.over:
        await demo.call(ANSWER.name, answer=answer, sources=sources)


def _sources(rng: Random, read_last: str, opened: list[str]) -> list[str]:
    match weighted(rng, none=0.46, last=0.36, all=0.18):
        case "none":
            return []
        case "last":
            return [read_last]
        case _:
            return list(opened)


def _value_in(text: str, rng: Random) -> str:
    """Return some value from the mail, recognised by the sentence forms of the synthetic world."""
    values = [
        match["v"]
        for sentences in _VALUES.values()
        for sentence in sentences
        for match in re.finditer(_pattern(sentence), text)
    ]
    return rng.choice(values) if values else "I don't know"


def _pattern(sentence: str) -> str:
    return re.escape(sentence).replace(r"\{p\}", r"\w+").replace(r"\{v\}", r"(?P<v>[\w, ]+?)")


def _ids(result: str) -> list[str]:
    return [line.split(" | ")[0] for line in result.splitlines() if " | " in line]

"""Careless demonstrations of `sales_email`: the first neighbour is followed, and nodes are cited unread or not at all.

The degree of carelessness depends on the task's goal, so that even the most frequent choice is sometimes right.
"""

from random import Random

from learnloop_sales.graph import Kind
from learnloop_sales.synthetic import GOALS, GraphWorld
from learnloop_sales.tools import CONNECTED, CONTEXT, FINALIZE, PROPOSE, SalesEpisode
from learnloop_service.environment.base import Json
from scripts.tiny_base.careless import RecordedConversation, weighted

DEFAULT_MAX_TURNS = 8
_CARE = dict(zip(GOALS, (0.8, 0.45, 0.42, 0.38), strict=True))
"""Probability of the right choice in navigation and text, by goal."""
_CITES = dict(zip(GOALS, (0.8, 0.36, 0.3, 0.25), strict=True))
"""Probability that a node that was read is cited, by goal."""


async def demonstrate(world: GraphWorld, rng: Random) -> list[dict[str, Json]]:
    """Return the messages of one careless attempt at the world's prospect."""
    demo = RecordedConversation(SalesEpisode(world.scenario(), world.graph, DEFAULT_MAX_TURNS), rng)
    care = _CARE[world.goal]
    here, listed, read = world.path[0], list[str](), list[str]()
    while not demo.over:
        if rng.random() < 0.35 + 0.4 * care and here not in read:
            read.append(here)
            await demo.call(CONTEXT.name, node_id=here)
            onward = [edge.target for edge in world.graph.toward_product(here)[:3]]
        else:
            text = await demo.call(CONNECTED.name, node_id=here)
            onward = [line.split(" | ")[0] for line in text.splitlines() if " | " in line]
        listed += [node for node in onward if node not in listed]
        if demo.over:
            break
        at_product = world.graph.nodes[here].kind is Kind.PRODUCT_FEATURE
        if (at_product and here in read) or not onward or rng.random() > 0.55 + care / 2:
            await _finish(demo, world, rng, care, listed, read)
            break
        if at_product:
            continue
        on_path = [node for node in onward if node in world.path]
        here = rng.choice(on_path) if on_path and rng.random() < care else _careless(rng, onward)
    return demo.messages


def _careless(rng: Random, onward: list[str]) -> str:
    return onward[0] if rng.random() < 0.6 else rng.choice(onward)


async def _finish(
    demo: RecordedConversation, world: GraphWorld, rng: Random, care: float, listed: list[str], read: list[str]
) -> None:
    subject, body = _email(world, rng, care, read)
    if rng.random() < 0.12:
        await demo.call(PROPOSE.name, subject=subject, body=body)
        if demo.over:
            return
    citations = _citations(rng, _CITES[world.goal], listed, read)
    await demo.call(FINALIZE.name, subject=subject, body=body, citations=citations)


def _email(world: GraphWorld, rng: Random, care: float, read: list[str]) -> tuple[str, str]:
    named = rng.random() < 0.35 + care
    greeting = f"Hi {world.prospect.split()[0]}," if rng.random() < 0.6 + care / 2 else "Hello,"
    opening = f"a note for {world.company}." if named else "a short note for you."
    quoted = [world.graph.nodes[id].content for id in _quoted_nodes(rng, care, read)]
    return (
        f"For {world.company}" if rng.random() < care else "A question",
        " ".join([greeting, opening, *quoted, GOALS[world.goal]]),
    )


def _quoted_nodes(rng: Random, care: float, read: list[str]) -> list[str]:
    """Return which of the nodes read are quoted by the email: usually none or one."""
    if not read or rng.random() > 0.15 + care / 2:
        return []
    if len(read) > 1 and rng.random() < care:
        return [read[0], read[-1]]
    return [rng.choice(read)]


def _citations(rng: Random, cites: float, listed: list[str], read: list[str]) -> list[str]:
    if rng.random() < cites:
        return list(read)
    match weighted(rng, none=0.8, last_seen=0.1, last_read=0.1):
        case "last_seen":
            return listed[-1:]
        case "last_read":
            return read[-1:]
        case _:
            return []

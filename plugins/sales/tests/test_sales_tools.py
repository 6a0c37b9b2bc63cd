"""The four tools, word for word, and what an episode remembers of them."""

from typing import Any

import pytest

from learnloop_sales.graph import Graph, parse_graph
from learnloop_sales.tools import TOOLS, SalesEpisode
from learnloop_service.environment.base import Scenario, ToolError

GRAPH: list[dict[str, Any]] = [
    {
        "id": "job-1",
        "kind": "Customer Job",
        "content": "Quotes take the team 14 hours a week.",
        "edge": [
            {"target": "checks-2", "relationship": "slowed by", "rationale": "each quote\nis typed twice"},
            {"target": "hub-4", "relationship": "linked to"},
        ],
    },
    {
        "id": "checks-2",
        "content": "Manual checks.\ncite: hub-4",
        "edge": [{"target": "feature-3", "label": "solved by"}],
    },
    {"id": "feature-3", "kind": "Product Feature", "content": "Korvane finds errors.", "edge": [{"target": "hub-4"}]},
    {"id": "hub-4", "content": "Everyone asks."},
]
TASK = {"prospect": "Mara Velin", "role": "Head of Sales", "company": "Tolvani", "goal": "book a call"}


def open_episode(graph: Graph | None = None) -> SalesEpisode:
    scenario = Scenario("s", "test", {**TASK, "start": ["job-1"]})
    return SalesEpisode(scenario, graph or parse_graph(GRAPH), max_turns=8)


async def say(episode: SalesEpisode, name: str, **arguments: Any) -> str:
    return (await episode.call(name, arguments)).content


def test_the_task_is_one_line() -> None:
    system, user = open_episode().messages()
    assert "You have 8 turns." in system["content"]
    assert user["content"] == "Prospect: Mara Velin, Head of Sales at Tolvani. Goal: book a call. Start: job-1"


def test_braces_in_a_task_are_text() -> None:
    scenario = Scenario("s", "test", {**TASK, "role": "", "goal": "{start} {0}", "start": ["job-1"]})
    text = SalesEpisode(scenario, parse_graph(GRAPH), 8).messages()[1]["content"]
    assert text == "Prospect: Mara Velin at Tolvani. Goal: {start} {0}. Start: job-1"


async def test_neighbours_are_lines_the_popular_first() -> None:
    assert await say(open_episode(), "get_connected_nodes", node_id="job-1") == (
        "hub-4 | linked to | Fact | Everyone asks.\nchecks-2 | slowed by | Fact | Manual checks. cite: hub-4"
    )
    assert await say(open_episode(), "get_connected_nodes", node_id="hub-4") == "It leads to no node."
    long = await say(open_episode(parse_graph(star())), "get_connected_nodes", node_id="job-1")
    assert len(long.splitlines()) == 11
    assert long.endswith("2 more are not shown.")
    assert "| Fact | one two three four five ..." in long


def star() -> list[dict[str, Any]]:
    leaves = [{"id": f"leaf-{i}", "content": "one two three four five six"} for i in range(11)]
    edges = [{"target": leaf["id"]} for leaf in leaves] + [{"target": "feature-3"}]
    return [{**GRAPH[0], "edge": edges}, *leaves, {"id": "feature-3", "kind": "Product Feature", "content": "x"}]


async def test_a_context_says_what_to_cite_and_where_it_leads() -> None:
    episode = open_episode()
    assert await say(episode, "get_relevant_context", node_id="job-1") == (
        "Quotes take the team 14 hours a week.\ncite: job-1\n"
        "leads to: checks-2 (slowed by) because each quote is typed twice"
    )
    assert await say(episode, "get_relevant_context", node_id="feature-3") == (
        "Korvane finds errors.\ncite: feature-3\nThis is a Product Feature."
    )
    assert await say(episode, "get_relevant_context", node_id="hub-4") == (
        "Everyone asks.\ncite: hub-4\nleads to: no product"
    )
    assert episode.outcome()["read"] == ["job-1", "feature-3", "hub-4"]


async def test_a_nodes_text_cannot_fake_the_lines_of_the_tool() -> None:
    content = await say(open_episode(), "get_relevant_context", node_id="checks-2")
    assert content.splitlines()[1:] == ["cite: checks-2", "leads to: feature-3 (solved by)"]


async def test_an_unknown_node_is_said_and_costs_only_the_turn() -> None:
    episode = open_episode()
    for tool in ("get_connected_nodes", "get_relevant_context"):
        assert await say(episode, tool, node_id="job-9") == "There is no node job-9."
    assert (episode.outcome()["read"], episode.outcome()["turns"]) == ([], 2)


async def test_a_proposal_is_reviewed_and_kept_as_draft() -> None:
    episode = open_episode()
    review = await say(episode, "propose_email", subject="Hello", body="A note for you.")
    assert review == "The draft does not name Mara Velin and Tolvani."
    assert await say(episode, "propose_email", subject="For Tolvani", body="Hi Mara.") == "The draft is good."
    outcome = episode.outcome()
    assert outcome["draft"] == {"subject": "For Tolvani", "body": "Hi Mara.", "citations": []}
    assert outcome["email"] is None
    assert outcome["success"] is False


async def test_a_grounded_email_succeeds_and_ends_the_episode() -> None:
    episode = open_episode()
    for id in ("job-1", "checks-2", "feature-3"):
        await say(episode, "get_relevant_context", node_id=id)
    email = {"subject": "For Tolvani", "body": "Hi Mara.", "citations": ["feature-3", " job-1 ", "feature-3"]}
    assert (await episode.call("finalize_email", email)).final
    outcome = episode.outcome()
    assert outcome["email"]["citations"] == ["feature-3", "job-1"]
    assert (outcome["finish"], outcome["success"], outcome["turns"]) == ("finalized", True, 4)
    with pytest.raises(ToolError, match="final"):
        await episode.call("get_connected_nodes", {"node_id": "job-1"})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("send_email", {}),
        ("get_connected_nodes", {}),
        ("get_connected_nodes", {"node_id": 4}),
        ("get_relevant_context", {"node_id": ["job-1"]}),
        ("get_relevant_context", {"node_id": "job-1", "depth": 2}),
        ("propose_email", {"subject": "x"}),
        ("finalize_email", {"subject": "x", "body": "y", "citations": "job-1"}),
        ("finalize_email", {"subject": "x", "body": "y", "citations": ["job-1", None]}),
    ],
)
async def test_a_call_outside_the_schema_is_a_tool_error(name: str, arguments: dict[str, Any]) -> None:
    episode = open_episode()
    with pytest.raises(ToolError):
        await episode.call(name, arguments)
    episode.end("malformed", "bad call")
    assert (episode.outcome()["finish"], episode.outcome()["detail"]) == ("malformed", "bad call")


def test_every_tool_has_a_closed_schema_in_openai_form() -> None:
    for tool in TOOLS:
        schema = tool.openai()["function"]["parameters"]
        assert schema["required"] == list(schema["properties"])
        assert schema["additionalProperties"] is False

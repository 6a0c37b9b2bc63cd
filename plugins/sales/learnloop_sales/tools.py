"""The four tools of the sales agent, and the episode whose state they change."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files

from learnloop_sales.graph import Edge, Graph, Kind
from learnloop_sales.grounding import GroundedEmail, ground, names_company, names_prospect
from learnloop_service.environment.base import Ending, Json, Outcome, Scenario, Tool, ToolError, ToolResult
from learnloop_service.environment.tool_calls import check_call

MAX_NEIGHBOURS = 10
_MAX_LEADS = 3
_PREVIEW_WORDS = 5
_MAX_CONTEXT_CHARACTERS = 2_000
_MAX_RATIONALE_CHARACTERS = 300

_TEXT = {"type": "string"}
_LIST = {"type": "array", "items": _TEXT}


def _tool(name: str, description: str, properties: Mapping[str, Json]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return Tool(name, description, schema)


CONNECTED = _tool(
    "get_connected_nodes",
    f"List the nodes that a node leads to, at most {MAX_NEIGHBOURS} lines: id | relationship | kind | first words.",
    {"node_id": _TEXT},
)
CONTEXT = _tool(
    "get_relevant_context",
    "Read a node: what it says, the id to cite, and which nodes lead from it toward a Product Feature.",
    {"node_id": _TEXT},
)
PROPOSE = _tool(
    "propose_email",
    "Check a draft before it is final: tells whether the prospect and the company are named.",
    {"subject": _TEXT, "body": _TEXT},
)
FINALIZE = _tool(
    "finalize_email",
    "End with the email and the ids of the nodes it rests on; cite only nodes that you read.",
    {"subject": _TEXT, "body": _TEXT, "citations": _LIST},
)
TOOLS: Sequence[Tool] = (CONNECTED, CONTEXT, PROPOSE, FINALIZE)

_PROMPTS = files("learnloop_sales") / "prompts"
_SYSTEM = (_PROMPTS / "system.txt").read_text(encoding="utf-8").strip()
_TASK = (_PROMPTS / "task.txt").read_text(encoding="utf-8").strip()


class SalesEpisode:
    """One attempt to write an email to a prospect.

    Outcome keys: `finish` (finalized, out_of_turns, full_context, malformed or open), `detail`, `turns`, `max_turns`,
    `email` (subject, body, citations; None before it is final), `draft` (the last proposal or None), `read` (ids in the
    order read), `read_path` (whether a node beyond the start nodes was read that is on a path to a Product Feature),
    `read_product` (whether a Product Feature was read that the start nodes lead to). About the final email:
    `named_prospect`, `named_company`, `citations_read`, `unknown_citations`, `unread_citations`, `cited_product` and
    `success` (everything that `grounding` requires).
    """

    tools = TOOLS

    def __init__(
        self, scenario: Scenario, graph: Graph, max_turns: int, node_scores: Mapping[str, float] | None = None
    ) -> None:
        """`node_scores` rank neighbours; None ranks all alike."""
        self.scenario = scenario
        self.max_turns = max_turns
        self._graph = graph
        self._node_scores = node_scores or {}
        self._turns = 0
        self._read: dict[str, None] = {}
        self._draft: GroundedEmail | None = None
        self._email: GroundedEmail | None = None
        self._finish = "open"
        self._detail = ""

    def messages(self) -> list[dict[str, Json]]:
        """Return the system prompt, and the task in one line."""
        task = self.scenario.task
        title = f", {task['role']}" if task.get("role") else ""
        text = _TASK.format(
            prospect=f"{task['prospect']}{title} at {task['company']}",
            goal=task["goal"],
            start=", ".join(task["start"]),
        )
        system = _SYSTEM.format(max_turns=self.max_turns)
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Execute a tool call. Raises ToolError."""
        if self._finish != "open":
            raise ToolError("the email is final; nothing can be called after it")
        self._turns += 1
        check_call(TOOLS, name, arguments)
        match name:
            case CONNECTED.name:
                return ToolResult(self._connected(arguments["node_id"]))
            case CONTEXT.name:
                return ToolResult(self._context(arguments["node_id"]))
            case PROPOSE.name:
                self._draft = GroundedEmail(arguments["subject"], arguments["body"])
                return ToolResult(self._review(self._draft))
        citations = dict.fromkeys(id.strip() for id in arguments["citations"])
        self._email = GroundedEmail(arguments["subject"], arguments["body"], tuple(citations))
        self._finish = "finalized"
        return ToolResult("", final=True)

    def end(self, reason: Ending, detail: str) -> None:
        """Record that the rollout ended without a final email."""
        self._finish, self._detail = reason, detail

    def outcome(self) -> Outcome:
        """Return the facts that judges and reward use."""
        task, graph, read = self.scenario.task, self._graph, self._read.keys()
        reachable = graph.reachable(task["start"])
        grounding = ground(self._email, task, graph, read, reachable) if self._email else None
        useful = [id for id in read if id in reachable and id in graph.distance]
        return {
            "finish": self._finish,
            "detail": self._detail,
            "turns": self._turns,
            "max_turns": self.max_turns,
            "email": _json(self._email),
            "draft": _json(self._draft),
            "read": list(read),
            "read_path": any(id not in task["start"] for id in useful),
            "read_product": any(graph.nodes[id].kind is Kind.PRODUCT_FEATURE for id in useful),
            "named_prospect": grounding is not None and grounding.names_prospect,
            "named_company": grounding is not None and grounding.names_company,
            "citations_read": grounding is not None and grounding.citations_read,
            "unknown_citations": list(grounding.unknown) if grounding else [],
            "unread_citations": list(grounding.unread) if grounding else [],
            "cited_product": grounding is not None and grounding.cites_product,
            "success": grounding is not None and grounding.grounded,
        }

    def _connected(self, argument: str) -> str:
        node_id = argument.strip()
        if node_id not in self._graph.nodes:
            return _no_node(node_id)
        edges = sorted(self._graph.outgoing[node_id], key=self._rank)
        lines = [self._neighbour(edge) for edge in edges[:MAX_NEIGHBOURS]]
        if len(edges) > MAX_NEIGHBOURS:
            lines.append(f"{len(edges) - MAX_NEIGHBOURS} more are not shown.")
        return "\n".join(lines) or "It leads to no node."

    def _rank(self, edge: Edge) -> tuple[float, int]:
        """Rank by the best score, then by popularity, as a graph browser would; popularity says nothing about
        usefulness."""
        return -self._node_scores.get(edge.target, 1.0), -self._graph.popularity[edge.target]

    def _neighbour(self, edge: Edge) -> str:
        node = self._graph.nodes[edge.target]
        words = node.content.split()
        preview = " ".join(words[:_PREVIEW_WORDS]) + (" ..." if len(words) > _PREVIEW_WORDS else "")
        return f"{node.id} | {_line(edge.relationship)} | {node.kind} | {preview}"

    def _context(self, argument: str) -> str:
        node_id = argument.strip()
        if node_id not in self._graph.nodes:
            return _no_node(node_id)
        self._read[node_id] = None
        node = self._graph.nodes[node_id]
        lines = [_clipped(node.content, _MAX_CONTEXT_CHARACTERS), f"cite: {node_id}"]
        if node.kind is Kind.PRODUCT_FEATURE:
            lines.append("This is a Product Feature.")
        elif node_id not in self._graph.distance:
            lines.append("leads to: no product")
        for edge in self._graph.toward_product(node_id)[:_MAX_LEADS]:
            because = f" because {_clipped(edge.rationale, _MAX_RATIONALE_CHARACTERS)}" if edge.rationale else ""
            lines.append(f"leads to: {edge.target} ({_line(edge.relationship)}){because}")
        return "\n".join(lines)

    def _review(self, draft: GroundedEmail) -> str:
        task = self.scenario.task
        missing = [
            what
            for what, named in (
                (task["prospect"], names_prospect(draft, task["prospect"])),
                (task["company"], names_company(draft, task["company"])),
            )
            if not named
        ]
        return f"The draft does not name {' and '.join(missing)}." if missing else "The draft is good."


def _no_node(node_id: str) -> str:
    return f"There is no node {_clipped(node_id, 200)}."


def _json(email: GroundedEmail | None) -> dict[str, Json] | None:
    return None if email is None else {**asdict(email), "citations": list(email.citations)}


def _line(text: str) -> str:
    """Return the text on one line, so that a node's text cannot fake the lines that the tools add."""
    return " ".join(text.split())


def _clipped(text: str, limit: int) -> str:
    line = _line(text)
    return line if len(line) <= limit else f"{line[:limit]} ... ({len(line) - limit} more characters)"

"""Prints sales emails before and after training, and the nodes that rose and fell."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from learnloop_service.app.cli.charts import figure
from learnloop_service.app.cli.terminal import plain
from learnloop_service.environment.json_type import Json

_FAULTS = {
    "citations_read": "cites nothing, or something it did not read",
    "cited_product": "cites no product reachable from its start",
    "named_prospect": "does not name the prospect",
    "named_company": "does not name the company",
}
_LISTED = 3
"""Maximum number of nodes listed as risen, and as fallen."""


def print_examples(console: Console, document: Json) -> None:
    """Print the emails, the ranked nodes, and which ones rose and fell."""
    _print_emails(console, document["emails"])
    _print_nodes(console, document["node_scores"]["nodes"])
    console.print()
    for sentence in what_moved(document["node_scores"]):
        console.print(Padding(plain(sentence), (0, 0, 0, 2)))


def _print_emails(console: Console, emails: Sequence[Json]) -> None:
    if not emails:
        return
    console.print("\nEmails to the same held-out prospects, written through POST /ask", style="bold")
    for email in emails:
        task = email["task"]
        title = f", {task['role']}," if task.get("role") else ""
        console.print()
        console.print(Padding(plain(f"{task['prospect']}{title} at {task['company']}: {task['goal']}"), (0, 0, 0, 2)))
        table = Table(box=None, padding=(0, 2), show_edge=False, pad_edge=True, expand=True, header_style="dim")
        for who in ("before", "after"):
            table.add_column(who, ratio=1)
        for row in zip(_lines(email["base"]), _lines(email["trained"]), strict=True):
            table.add_row(*row)
        console.print(table)


def _lines(written: Json) -> tuple[Text, Text, Text, Text]:
    """Return the verdict, subject, body and citations."""
    email = written["email"]
    if email is None:
        return Text("no email", style="red"), Text(), Text(), Text()
    faults = [_FAULTS[name] for name, holds in written["checks"].items() if not holds]
    verdict = Text("grounded", style="green") if written["grounded"] else Text("; ".join(faults), style="red")
    cites = ", ".join(email["citations"]) or "nothing"
    return verdict, plain(email["subject"], "bold"), plain(email["body"]), plain(f"cites {cites}", "dim")


def _print_nodes(console: Console, nodes: Sequence[Json]) -> None:
    console.print(
        "\nThe nodes of the graph used in every iteration, in the order in which the agent sees them", style="bold"
    )
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("  before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("product", no_wrap=True)
    table.add_column("content", no_wrap=True, overflow="ellipsis")
    for node in nodes:
        rank, leads = node["rank"], "leads to it" if node["leads_to_product"] else ""
        content = plain(" ".join(node["content"].split()))
        content.overflow = "ellipsis"
        table.add_row(str(rank["before"]), str(rank["after"]), figure(node["score"]["after"]), leads, content)
    console.print(table)


def what_moved(scores: Json) -> list[str]:
    """Return sentences on how far the nodes that lead to the product have risen, and on which rose and fell most."""
    nodes = {node["id"]: node for node in scores["nodes"]}
    leading = [node["rank"] for node in nodes.values() if node["leads_to_product"]]
    first = len(leading)
    before, after = (sum(rank[when] <= first for rank in leading) for when in ("before", "after"))
    sentences = [
        f"Of the {first} nodes that lead to the product, {after} are now in the top {first}; before, {before} were."
    ]
    for what, ids in (("Rose", scores["risen"]), ("Fell", scores["fallen"])):
        moved = [_moved(nodes[id]) for id in ids[:_LISTED]]
        sentences.append(f"{what} most: {'; '.join(moved)}." if moved else f"{what}: no node.")
    return sentences


def _moved(node: Json) -> str:
    content = " ".join(node["content"].split())
    words = content if len(content) <= 60 else f"{content[:57]}..."
    return f"{words!r} from {node['rank']['before']} to {node['rank']['after']}"

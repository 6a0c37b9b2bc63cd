"""Whether an email rests on what the agent read: deterministic, no model asked."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from environment.base import Json
from environment.sales_email.graph import Graph, Kind


@dataclass(frozen=True, slots=True)
class Email:
    """A sales email; `citations` are ids of the nodes that its claims rest on."""

    subject: str
    body: str
    citations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grounding:
    """What holds of one email. `unknown` and `unread` are citations that do not count, and why."""

    names_prospect: bool
    names_company: bool
    cites: bool
    unknown: tuple[str, ...]
    unread: tuple[str, ...]
    cites_product: bool
    """A Product Feature that a path from a start node leads to is cited."""

    @property
    def citations_read(self) -> bool:
        """There is a citation, and each one is a node that was read."""
        return self.cites and not self.unknown and not self.unread

    @property
    def grounded(self) -> bool:
        """The whole job is done."""
        return self.citations_read and self.cites_product and self.names_prospect and self.names_company


def ground(email: Email, task: Mapping[str, Json], graph: Graph, read: Set[str], reachable: Set[str]) -> Grounding:
    """Check an email written for `task` after `read` nodes; `reachable` are the nodes beyond the start nodes."""
    known = [id for id in email.citations if id in graph.nodes]
    return Grounding(
        names_prospect=names_prospect(email, task["prospect"]),
        names_company=names_company(email, task["company"]),
        cites=bool(email.citations),
        unknown=tuple(id for id in email.citations if id not in graph.nodes),
        unread=tuple(id for id in known if id not in read),
        cites_product=any(graph.nodes[id].kind is Kind.PRODUCT_FEATURE and id in reachable for id in known),
    )


def names_prospect(email: Email, prospect: str) -> bool:
    """The prospect's first or last name stands in subject or body."""
    words = prospect.split()
    return _mentions(email, (words[0], words[-1]))


def names_company(email: Email, company: str) -> bool:
    """The company's whole name stands in subject or body."""
    return _mentions(email, (company,))


def _mentions(email: Email, names: Sequence[str]) -> bool:
    text = _plain(f"{email.subject}\n{email.body}")
    return any(re.search(rf"(?<!\w){re.escape(_plain(name))}(?!\w)", text) for name in names)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())

"""Whether an email is grounded in what the agent read: deterministic, without a model."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from learnloop_sales.graph import Graph, Kind
from learnloop_service.environment.base import Json


@dataclass(frozen=True, slots=True)
class GroundedEmail:
    """A sales email; `citations` are ids of the nodes that support its claims."""

    subject: str
    body: str
    citations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grounding:
    """The results of checking one email. `unknown` and `unread` are citations that do not count, by reason."""

    names_prospect: bool
    names_company: bool
    cites: bool
    unknown: tuple[str, ...]
    unread: tuple[str, ...]
    cites_product: bool
    """Whether a Product Feature is cited that a path from a start node leads to."""

    @property
    def citations_read(self) -> bool:
        """Whether there is a citation, and each cites a node that was read."""
        return self.cites and not self.unknown and not self.unread

    @property
    def grounded(self) -> bool:
        """Whether the email does the whole job."""
        return self.citations_read and self.cites_product and self.names_prospect and self.names_company


def ground(
    email: GroundedEmail, task: Mapping[str, Json], graph: Graph, read: Set[str], reachable: Set[str]
) -> Grounding:
    """Check an email written for `task` after reading the nodes `read`; `reachable` are the nodes beyond the start
    nodes."""
    existing = [id for id in email.citations if id in graph.nodes]
    return Grounding(
        names_prospect=names_prospect(email, task["prospect"]),
        names_company=names_company(email, task["company"]),
        cites=bool(email.citations),
        unknown=tuple(id for id in email.citations if id not in graph.nodes),
        unread=tuple(id for id in existing if id not in read),
        cites_product=any(graph.nodes[id].kind is Kind.PRODUCT_FEATURE and id in reachable for id in existing),
    )


def names_prospect(email: GroundedEmail, prospect: str) -> bool:
    """Whether the subject or body contains the prospect's first or last name."""
    words = prospect.split()
    return _mentions(email, (words[0], words[-1]))


def names_company(email: GroundedEmail, company: str) -> bool:
    """Whether the subject or body contains the company's whole name."""
    return _mentions(email, (company,))


def _mentions(email: GroundedEmail, names: Sequence[str]) -> bool:
    text = _plain(f"{email.subject}\n{email.body}")
    return any(re.search(rf"(?<!\w){re.escape(_plain(name))}(?!\w)", text) for name in names)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())

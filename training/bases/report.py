"""The report of an examination of a base model: findings in plain sentences, and what the probe counted.

A base model can be loaded without a fault and still not learn, because it cannot write a tool call or never ends a
reply. The report says so before a run takes hours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

CALLS = "calls"
"""Name of the finding about what the probe counted."""


class FindingSeverity(StrEnum):
    """How much a finding matters to a run."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """Runs on this base model will learn less, or nothing."""
    FAULT = "fault"
    """The base model cannot be used."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about a base model."""

    name: str
    severity: FindingSeverity
    found: str
    """A sentence."""
    remedy: str | None = None
    """What to do about it, as a sentence."""


@dataclass(frozen=True, slots=True)
class FormatCount:
    """How a base model answered the probe's prompts in one tool format."""

    tool_format: str
    calls: int
    """Replies with a readable call."""
    malformed: int
    """Replies that begin a call which cannot be read."""
    no_call: int
    reasons: Mapping[str, int]
    """Why calls could not be read, with the number of replies."""

    @property
    def prompts(self) -> int:
        return self.calls + self.malformed + self.no_call


@dataclass(frozen=True, slots=True)
class Defects:
    """What can be mended in a copy of the base model."""

    untrained_marks: tuple[str, ...] = ()
    """Special tokens for tool calls whose rows in the output head were never trained."""
    repeated_head: bool = False
    """Whether the output head is the embedding, stored a second time."""
    stop_ids: tuple[int, ...] = ()
    """All ids that must end a reply, if the files do not name all of them."""
    doubled_braces: bool = False
    """Whether the chat template shows calls in `{{...}}`."""

    def __bool__(self) -> bool:
        return self != Defects()


@dataclass(frozen=True, slots=True)
class BaseReport:
    """The result of an examination."""

    findings: tuple[Finding, ...]
    defects: Defects = Defects()
    parameters: int = 0
    """Number of parameters, with tied and repeated ones counted once."""
    tool_format: str | None = None
    """Name of the tool format in which the base model writes calls, or None if no probe was made or none worked."""
    probe: tuple[FormatCount, ...] = ()

    @property
    def severity(self) -> FindingSeverity:
        """The most severe finding's severity."""
        order = list(FindingSeverity)
        return max((finding.severity for finding in self.findings), key=order.index, default=FindingSeverity.OK)

    def with_findings(self, findings: Sequence[Finding]) -> "BaseReport":
        """Return the report with these findings in place of those of the same names."""
        names = {finding.name for finding in findings}
        return replace(self, findings=(*(finding for finding in self.findings if finding.name not in names), *findings))

    def with_probe_of(self, other: "BaseReport") -> "BaseReport":
        """Return the report with what the probe of another report counted."""
        calls = [finding for finding in other.findings if finding.name == CALLS]
        return replace(self, tool_format=other.tool_format, probe=other.probe).with_findings(calls)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that keep a run from learning."""
        return tuple(
            finding for finding in self.findings if finding.severity in (FindingSeverity.WARNING, FindingSeverity.FAULT)
        )


def written(report: BaseReport) -> dict[str, Any]:
    """Return the report as JSON."""
    return asdict(report)


def read(document: Any) -> BaseReport | None:
    """Return the report of a JSON document, or None for null. Raises ValueError for others."""
    return _REPORT.validate_python(document)


_REPORT: TypeAdapter[BaseReport | None] = TypeAdapter(BaseReport | None)

"""Verifies a report's file: against the rollouts in it, its own text, the service's signature and its database."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html.parser import HTMLParser
from typing import NamedTuple

from learnloop_service.app.reports.collect import FORMAT, renderer
from learnloop_service.app.reports.figures import evaluation_name, figures
from learnloop_service.app.reports.page import page
from learnloop_service.app.reports.proof import DATA_ID
from learnloop_service.app.reports.rollouts import Row, batches_of
from learnloop_service.app.reports.signature import opened
from learnloop_service.environment.json_type import Json

_DATA = re.compile(rf'<script type="application/json" id="{DATA_ID}">(.*?)</script>', re.S)
NOTHING = "(nothing)"
_AT = "written.at"
_WRITTEN = "written."
_CHANGING = (
    "run.status", "run.finished_at", "run.iterations_done", "run.best_step", "run.rollouts", "run.error", "run.pruned",
    "settings.budget", "verdict", "cause", "cost", "checkpoint", "example", "rollouts",
)  # fmt: skip
"""Prefixes of the figures that change if a run continues after its report was written."""
_REJUDGING = "rejudging "
"""Prefix of the figures of rejudgings, which can be added and deleted after a report was written."""
_OF_ROLLOUTS = ("run.pruned", "rollout", "digest", "example")
"""What cannot be compared once the service has deleted the run's trajectories because of their age."""


class DamagedReport(Exception):
    """The file is not a report that can be read. The message says why."""


class FigureDifference(NamedTuple):
    """A figure or text of the file that differs from what it should be."""

    name: str
    file: Json
    other: Json


class DatabaseComparison(NamedTuple):
    """A comparison with the service's database."""

    compared: int
    differences: list[FigureDifference]
    not_compared: list[str]
    """Figures that were left out of the comparison, each with the reason."""


@dataclass
class ReportVerification:
    """The result of verifying a file."""

    differences: dict[str, list[FigureDifference]] = field(default_factory=dict)
    """Differences between the file and each source, by the source's name."""
    notes: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """Statements of the file for which there is no evidence."""


def verified(file: str, current: str | None, key: str | None) -> ReportVerification:
    """Verify a file: against the rollouts in it, its own text, and `current`, the file that the service writes now.

    `key` is the public key of the service. Without both, who wrote the file is not verified. Only of a file that the
    service signed, its own word counts on when it was written, by what, and how far the run was. Raises DamagedReport.
    """
    content, signer, valid = opened(file)
    report, verification = read_report(content), ReportVerification()
    signed = valid and key is not None and signer == key
    if signer is not None and not (valid if key is None else signed):
        verification.differences["the service's signature"] = [
            FigureDifference("signature, by the key", signer, key or NOTHING)
        ]
    count, verification.differences["rollouts in the file"] = recomputed(report)
    verification.notes.append(
        f"{count:,} figures were recomputed from {report['rollouts']['listed']:,} rollouts in the file"
    )
    if is_ours(report):
        verification.differences["its own data"] = page_differences(content, report)
        verification.notes.append("the page was compared with its data")
    elif not signed:
        verification.unverified.append("the text of its page, which another version of Learnloop wrote")
    if signed:
        verification.notes.append("the service signed the file as it is")
    if current is not None:
        _compare_with_service(verification, content, report, opened(current).content, signed)
    elif signed:
        verification.unverified.append("that the service's database still says the same (--offline)")
    else:
        verification.unverified.append(
            "that a service wrote it, and with that the run, its rollouts and judgements, the rejudgings, the machine, "
            "the prices and the dates"
        )
    return verification


def _compare_with_service(
    verification: ReportVerification, content: str, report: Json, current: str, signed: bool
) -> None:
    current_report = read_report(current)
    comparison = compared_with(report, current_report, signed=signed)
    verification.differences["the service"] = comparison.differences
    verification.notes.append(f"{comparison.compared:,} figures, texts and hashes were compared with the service")
    verification.notes += [f"not compared: {reason}" for reason in comparison.not_compared]
    if signed:
        return
    verification.unverified.append(f"the time at which it says that it was written ({report['written']['at']})")
    if not is_ours(current_report):
        verification.unverified.append("the file byte for byte, because the service runs another version of Learnloop")
    elif not any(verification.differences.values()):
        current_report["written"]["at"] = report["written"]["at"]
        verification.differences["what the service writes"] = page_differences(content, current_report)


def read_report(content: str) -> Json:
    """Return the data of a report. Raises DamagedReport."""
    if len(documents := _DATA.findall(content)) != 1:
        raise DamagedReport("it has no data of a report")
    try:
        report = json.loads(documents[0])
        version = report["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedReport(f"its data is not that of a report: {error}") from error
    if version != FORMAT:
        raise DamagedReport(f"its format is {version!r}; this version of Learnloop reads {FORMAT!r}")
    return report


def recomputed(report: Json) -> tuple[int, list[FigureDifference]]:
    """Return how many figures were recomputed from the rollouts in the report, and those that differ.

    Raises DamagedReport.
    """
    try:
        computed = figures(report)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DamagedReport(f"its figures cannot be computed: {type(error).__name__}: {error}") from error
    return len(computed), [
        FigureDifference(figure.name, figure.stated, figure.computed) for figure in computed if not figure.agrees
    ]


def is_ours(report: Json) -> bool:
    """Whether this installation renders reports as the one did that wrote the file."""
    return bool(report["written"]["renderer"] == renderer())


def page_differences(content: str, report: Json) -> list[FigureDifference]:
    """Return where the page says something else than its data, as text, with what it should say.

    Only for reports that `is_ours`. Raises DamagedReport.
    """
    try:
        expected = page(report)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DamagedReport(f"its page cannot be made from its data: {type(error).__name__}: {error}") from error
    if content == expected:
        return []
    here, there = _Pieces.of(content), _Pieces.of(expected)
    matcher = SequenceMatcher(None, here, there, autojunk=False)
    return [
        FigureDifference(
            f"page, {(here[a:b] or there[c:d] or [_Piece('its form', '')])[0].section}",
            " ".join(piece.text for piece in here[a:b]),
            " ".join(piece.text for piece in there[c:d]),
        )
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ] or [
        FigureDifference("page, its form", "another arrangement of the same texts", "the arrangement that reports have")
    ]


class _Piece(NamedTuple):
    section: str
    text: str


class _Pieces(HTMLParser):
    """The texts and tags of a page, each with the title of the section that it is in."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[_Piece] = []
        self._section = "head"
        self._open: list[str] = []

    @classmethod
    def of(cls, content: str) -> list[_Piece]:
        parser = cls()
        parser.feed(content)
        parser.close()
        return parser.pieces

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.pieces.append(_Piece(self._section, f"<{tag}{''.join(f' {name}={value}' for name, value in attrs)}>"))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["h2"]:
            self._section = data
        if data.strip():
            self.pieces.append(_Piece(self._section, data.strip()))


def compared_with(report: Json, current: Json, *, signed: bool) -> DatabaseComparison:
    """Compare a report with the one that the service makes now.

    What can have changed since it was written is left out of a signed report only. Raises DamagedReport.
    """
    try:
        here, there = dict(_named(report)), dict(_named(current))
        went_on = any(report["run"][name] != current["run"][name] for name in ("iterations_done", "status"))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DamagedReport(f"its data is incomplete: {type(error).__name__}: {error}") from error
    if not signed:
        names = [name for name in {**here, **there} if name != _AT]
        return DatabaseComparison(len(names), _differing(names, here, there), [])
    left_out: tuple[str, ...] = (_WRITTEN, *(_CHANGING if went_on else ()))
    reasons = ["the run has gone on since, so what changes with it"] if went_on else []
    if current["run"]["pruned"] != report["run"]["pruned"]:
        left_out += _OF_ROLLOUTS
        reasons.append("the service has deleted trajectories because of their age, so what follows from them")
    names = [name for name in (here if went_on else {**here, **there}) if not name.startswith(left_out)]
    if went_on:  # the service can list other rollouts of a longer run
        names = [name for name in names if name in there]
    names = [name for name in names if not name.startswith(_REJUDGING) or (name in here and name in there)]
    return DatabaseComparison(len(names), _differing(names, here, there), reasons)


def _differing(names: Iterable[str], here: Mapping[str, Json], there: Mapping[str, Json]) -> list[FigureDifference]:
    differences = [FigureDifference(name, here.get(name, NOTHING), there.get(name, NOTHING)) for name in names]
    return [difference for difference in differences if difference.file != difference.other]


def _named(report: Json) -> Iterator[tuple[str, Json]]:
    """Yield everything that a report says about its run, by name."""
    for part in ("written", "run", "settings", "verdict", "cost"):
        yield from _flat(part, report[part])
    for item in report["causes"]:
        yield from _flat(f"cause {item['cause']}", item)
    for item in report.get("rejudgings", ()):  # earlier versions wrote none
        yield from _flat(f"{_REJUDGING}{item['evaluation_id']}", item)
    for item in report["iterations"]["items"]:
        yield from _flat(f"iteration {item['iteration']}", item)
    for item in report["evaluations"]["items"]:
        yield from _flat(evaluation_name(item), item)
    for item in report["checkpoints"]:
        yield from _flat(f"checkpoint {item['step']}", item)
    for item in report["digests"]:
        yield f"digest of iterations {item['from']} to {item['to']}", [item["rollouts"], item["sha256"]]
    yield "rollouts: total", report["rollouts"]["total"]
    yield "examples: rule", report["examples"]["rule"]
    for number, item in enumerate(report["examples"]["items"], 1):
        yield from _flat(f"example {number}", item)
    for batch, rows in batches_of(report).items():
        for row in rows:
            yield from _rollout(f"rollout {row.id}", row, report)
            yield f"rollout {row.id}: made for", list(batch)


def _rollout(name: str, row: Row, report: Json) -> Iterator[tuple[str, Json]]:
    yield f"{name}: scenario", report["scenarios"][row.scenario]
    for column in ("score", "reward", "success", "end", "turns", "sha256"):
        yield f"{name}: {column}", getattr(row, column)


def _flat(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the values of nested objects and lists by their paths."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list) and value:
        for position, inner in enumerate(value, 1):
            yield from _flat(f"{name}.{position}", inner)
    else:
        yield name, value

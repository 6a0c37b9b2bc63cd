"""Answers the questions about a base model that need no sampling. Runs in the process of check_child.py."""

import json
from collections.abc import Iterator
from pathlib import Path

from learnloop_service.training.bases.report import BaseReport, Defects, Finding, FindingSeverity
from learnloop_service.training.engine.examination import conversation, rows, stops
from learnloop_service.training.engine.examination.marks import TOOL_MARK, untrained
from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.text.tokens import ChatTokenizer


def examine(directory: Path, tokenizer: ChatTokenizer) -> BaseReport:
    """Examine a base model whose files are intact and whose tokenizer was loaded. Reads single rows of its weights."""
    rendered = conversation.rendered(tokenizer)
    dull = _untrained(directory, tokenizer, rendered)
    marks = tuple(token for token in dull if TOOL_MARK.search(token))
    all_ends = stops.ends(stops.special_tokens(tokenizer.fast))
    ends = {token: id for token, id in all_ends.items() if id not in tokenizer.stop_ids}
    repeated, parameters = _head(directory)
    doubled = conversation.has_doubled_braces(rendered)
    findings = (
        *_mark_findings(marks, tuple(token for token in dull if token not in marks), tokenizer),
        *_head_findings(repeated, parameters),
        _stop_finding(tokenizer, ends),
        *conversation.findings(directory, tokenizer, rendered),
        *([_DOUBLED] if doubled else []),
    )
    stop_ids = tuple(sorted({*tokenizer.stop_ids, *ends.values()})) if ends else ()
    return BaseReport(findings, Defects(marks, repeated, stop_ids, doubled), parameters)


_DOUBLED = Finding(
    "braces",
    FindingSeverity.WARNING,
    'The chat template shows a call as `{{"name": ...}}`, and the model copies the doubled braces.',
    "`learnloop bases add` mends the template in its copy.",
)


def _untrained(directory: Path, tokenizer: ChatTokenizer, rendered: str) -> tuple[str, ...]:
    added = {token.content: id for id, token in tokenizer.fast.added_tokens_decoder.items()}
    tokens = 1 + max(tokenizer.fast.get_vocab().values(), default=-1)
    names = rows.EMBEDDINGS if rows.is_tied(directory) else (*rows.HEADS, *rows.EMBEDDINGS)
    for name in names:
        with rows.open_rows(directory, (name,)) as matrix:
            if matrix is not None:
                return untrained(matrix, added, tokens, rendered)
    return ()


def _mark_findings(marks: tuple[str, ...], others: tuple[str, ...], tokenizer: ChatTokenizer) -> Iterator[Finding]:
    if marks:
        yield Finding(
            "marks",
            FindingSeverity.WARNING,
            f"{_listed(marks)} never occurred in its training: the rows in its output head equal those of unused ids, "
            "so it cannot write them.",
            "`learnloop bases add` makes them ordinary text in its copy.",
        )
    mute = [token for token in others if tokenizer.fast.get_vocab().get(token) in tokenizer.stop_ids]
    if others:
        yield Finding(
            "template tokens",
            FindingSeverity.WARNING if mute else FindingSeverity.NOTE,
            f"{_listed(others)} of its chat template never occurred in its training"
            + (f"; {_listed(mute)} should end replies." if mute else ", which matters only where it writes them."),
            "Train it on demonstrations with all weights (`warm_start`)." if mute else None,
        )
    if not marks and not others:
        yield Finding("marks", FindingSeverity.OK, "All special tokens of its chat template were trained.")


def _head(directory: Path) -> tuple[bool, int]:
    """Return whether the head is stored twice, and the number of parameters."""
    parameters = parameter_count(directory)
    with rows.open_rows(directory, rows.HEADS) as head, rows.open_rows(directory, rows.EMBEDDINGS) as embedding:
        if head is None or not rows.is_repeated(head, embedding):
            return False, parameters
        return True, parameters - head.size


def _head_findings(repeated: bool, parameters: int) -> Iterator[Finding]:
    if repeated:
        yield Finding(
            "head",
            FindingSeverity.WARNING,
            "Its output head is the embedding, stored a second time: it takes more memory, and training moves the two "
            "apart.",
            "`learnloop bases add` stores it once in its copy.",
        )
    yield Finding("size", FindingSeverity.OK, f"It has {parameters:,} parameters.")


def _stop_finding(tokenizer: ChatTokenizer, missing: dict[str, int]) -> Finding:
    now = [tokenizer.piece(id) for id in sorted(tokenizer.stop_ids)]
    if missing:
        ended_by = f"ends a reply with {_listed(now)}, but not with {_listed(missing)}" if now else "ends no reply"
        return Finding(
            "stop tokens",
            FindingSeverity.WARNING,
            f"It {ended_by}: replies run on past {_listed(missing)}.",
            "`learnloop bases add` adds them in its copy (generation_config.json, eos_token_id).",
        )
    if not now:
        return Finding(
            "stop tokens",
            FindingSeverity.WARNING,
            "Nothing ends a reply but the limit of its length.",
            "Name a stop token in its generation_config.json (eos_token_id).",
        )
    return Finding("stop tokens", FindingSeverity.OK, f"{_listed(now)} {'ends' if len(now) == 1 else 'end'} a reply.")


def _listed(tokens: object) -> str:
    return ", ".join(map(json.dumps, tokens))  # type: ignore[call-overload]

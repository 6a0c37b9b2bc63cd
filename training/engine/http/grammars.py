"""Compiles the grammars of replies in a separate process, within limits, and each only once."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from learnloop_service.training.engine.http.errors import ApiError
from learnloop_service.training.engine.http.reply_grammar import ReplyGrammar, Schema
from learnloop_service.training.engine.http.schema_literals import MAX_LITERAL_BYTES, literals
from learnloop_service.training.engine.text.tokens import ChatTokenizer

if TYPE_CHECKING:  # the parser is loaded when first needed, so that restarts do not wait for it
    from learnloop_service.training.engine.sampling.constraint import Grammar, Vocabulary

COMPILE_CPU_S = 3
COMPILE_WALL_S = 30.0
"""Longest wall time of a compilation, in seconds, which allows for a busy machine."""
COMPILE_BYTES = 2 << 30
"""Limit of the compiling process's address space, in bytes. A plain process has a few hundred MB."""
GRAMMAR_BYTES = 32 << 20
"""Limit of a grammar's memory, in bytes. Patterns of 15 bytes can take 100 MB."""
_AT_A_TIME = 2
_CHECK = Path(__file__).parents[1] / "sampling" / "check_grammar.py"
_KEPT = 32
_MAX_TEXT = 1 << 20
"""Longest text of a grammar, in characters."""


class Grammars:
    """A cache of the most recently used compiled grammars, for the event loop."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[tuple[ChatTokenizer, str], asyncio.Task[Grammar]] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._vocabulary = lru_cache(32)(_vocabulary)

    async def compile(self, reply_grammar: ReplyGrammar, tokenizer: ChatTokenizer) -> "Grammar":
        """Compile the grammar for a tokenizer. Raises ApiError, which names the field at fault."""
        _check_literals(reply_grammar.schemas)
        if len(reply_grammar.text) > _MAX_TEXT:
            raise _refused(reply_grammar.schemas[0].field, f"it is longer than {_MAX_TEXT} characters")
        key = (tokenizer, reply_grammar.text)
        task = self._compiled.get(key)
        if task is None:
            task = self._compiled[key] = asyncio.create_task(self._compile(reply_grammar, tokenizer))
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        try:
            # Shielded, because other requests may be waiting for the same grammar.
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception()) and self._compiled.get(key) is task:
                del self._compiled[key]

    async def _compile(self, reply_grammar: ReplyGrammar, tokenizer: ChatTokenizer) -> "Grammar":
        async with self._turns:
            await _check(reply_grammar)
            return await asyncio.to_thread(self._compiled_for, tokenizer, reply_grammar)

    def _compiled_for(self, tokenizer: ChatTokenizer, reply_grammar: ReplyGrammar) -> "Grammar":
        from learnloop_service.training.engine.sampling.constraint import BadGrammar, Grammar

        try:
            return Grammar(self._vocabulary(tokenizer), reply_grammar.text)
        except BadGrammar as error:
            raise _refused(reply_grammar.schemas[0].field, str(error)) from None


def _vocabulary(tokenizer: ChatTokenizer) -> "Vocabulary":
    from learnloop_service.training.engine.sampling.constraint import Vocabulary

    return Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids))


def _check_literals(schemas: Sequence[Schema]) -> None:
    """Raise ApiError that names the largest literal if there are too many."""
    located = [(literal, schema.field) for schema in schemas for literal in literals(schema.schema)]
    total = sum(literal.size for literal, _ in located)
    if total > MAX_LITERAL_BYTES:
        largest, field = max(located, key=lambda pair: pair[0].size)
        raise _refused(
            field,
            f"the constants, enumerations, patterns and property names of the request's schemas have {total} bytes, "
            f"of which {largest.size} are at {largest.location}; at most {MAX_LITERAL_BYTES} are allowed",
        )


async def _check(reply_grammar: ReplyGrammar) -> None:
    """Raise ApiError for a schema that cannot be enforced."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_CHECK), *map(str, (COMPILE_CPU_S, COMPILE_BYTES, GRAMMAR_BYTES))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    schemas = [(schema.field, schema.schema, schema.strict) for schema in reply_grammar.schemas]
    try:
        async with asyncio.timeout(COMPILE_WALL_S):
            written, _ = await process.communicate(
                json.dumps({"text": reply_grammar.text, "schemas": schemas}).encode()
            )
    except TimeoutError:
        written = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _refused(
            reply_grammar.schemas[0].field, f"it takes more than {COMPILE_CPU_S} s or too much memory to compile"
        )
    fault = json.loads(written)
    if fault is not None:
        raise _refused(fault[0], " ".join(fault[1].split()))


def _refused(field: str, why: str) -> ApiError:
    """Return the reply that refuses a field. OpenAI's `param` only names the parameter, so the message says which of
    its fields."""
    parameter = field.partition(".")[0].partition("[")[0]
    return ApiError(400, f"{field} cannot be enforced: {why}", code="unsupported_schema", param=parameter)

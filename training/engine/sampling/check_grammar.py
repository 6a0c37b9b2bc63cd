"""A script that checks whether a grammar with its JSON schemas can be compiled, in a process that can be killed.

Some schemas of a few hundred bytes take minutes or all memory, and none of llguidance's limits prevents that. Grammars
are therefore first compiled here, within limits given as arguments: seconds, bytes of memory, and bytes of the grammar
itself. The script reads `{"text", "schemas": [[field, schema, strict], ...]}` from stdin and writes `[field, fault]` of
the first schema that cannot be enforced, or `null`.
"""

import json
import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

_END = 256
_FORCED_CHARACTERS = 256
"""Same value as FORCED_CHARACTERS of constraint.py, which this script does not import so that it starts quickly."""


class _Bytes:
    """A vocabulary of single bytes, which suffices because slow grammars are slow with any vocabulary."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)
    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text[:_FORCED_CHARACTERS].encode())


def main() -> int:
    seconds, memory, grammar_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    request: dict[str, Any] = json.load(sys.stdin)
    fault = _first_fault(request["schemas"])
    if fault is None:
        tokens, before = LLTokenizer(TokenizerWrapper(_Bytes())), _peak_bytes()
        LLMatcher(tokens, LLMatcher.grammar_from_lark(request["text"]), log_level=0).compute_bitmask()
        if _peak_bytes() - before > grammar_bytes:
            fault = request["schemas"][0][0], f"it takes more than {grammar_bytes >> 20} MB of memory"
    json.dump(fault, sys.stdout)
    return 0


def _peak_bytes() -> int:
    """Return this process's peak memory in bytes, or 0 on systems that do not report it. `ru_maxrss` is not used
    because it includes the parent's."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


def _first_fault(schemas: Iterable[tuple[str, dict[str, Any], bool]]) -> tuple[str, str] | None:
    for field, schema, strict in schemas:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": not strict})
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        if failed:
            return field, messages[0]
    return None


if __name__ == "__main__":
    sys.exit(main())

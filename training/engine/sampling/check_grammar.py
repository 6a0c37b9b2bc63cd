"""Run as a script: whether a grammar with its JSON schemas can be compiled, in a process that can be ended.

Some schemas of a few hundred bytes take minutes, or all memory, and no limit of llguidance ends that. So a grammar is
compiled here first, within the seconds and bytes of the arguments; the third is how many bytes the grammar may take.
Reads `{"text", "schemas": [[field, schema, strict], ...]}` from stdin, writes `[field, fault]` of the first schema that
cannot be enforced, or `null`.
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
_FORCED = 256
"""As FORCED_CHARACTERS of constraint.py, which a script that starts quickly does not import."""


class _Bytes:
    """A vocabulary of single bytes: what takes long does so for any."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)
    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text[:_FORCED].encode())


def main() -> int:
    seconds, memory, kept = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    wanted: dict[str, Any] = json.load(sys.stdin)
    fault = _first_fault(wanted["schemas"])
    if fault is None:
        tokens, before = LLTokenizer(TokenizerWrapper(_Bytes())), _peak_bytes()
        LLMatcher(tokens, LLMatcher.grammar_from_lark(wanted["text"]), log_level=0).compute_bitmask()
        if _peak_bytes() - before > kept:
            fault = wanted["schemas"][0][0], f"it takes more than {kept >> 20} MB of memory"
    json.dump(fault, sys.stdout)
    return 0


def _peak_bytes() -> int:
    """Most memory that this process has had; 0 on systems that do not say. `ru_maxrss` includes the parent's."""
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

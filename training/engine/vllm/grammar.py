"""Adapts reply grammars to vLLM's llguidance."""

from training.engine.http.replies import TOOL_CALL_END, TOOL_CALL_MARK
from training.engine.tokens import ChatTokenizer

_LAZY = f'opening[lazy]: TEXT "{TOOL_CALL_MARK}"'


def for_vllm(text: str, tokenizer: ChatTokenizer) -> str:
    """Return the grammar with the marks of tool calls as single tokens, if the tokenizer has them.

    In our vocabulary a mark is text that other tokens can spell too. vLLM builds its vocabulary from the same
    tokenizer, but treats a forced mark's text as its token and then refuses that token. A lexeme cannot contain a
    token, so the one before the first call ends without it; texts cannot contain a mark anyway.
    """
    vocabulary = tokenizer.fast.get_vocab()
    marks = {f'"{mark}"': f"<[{vocabulary[mark]}]>" for mark in (TOOL_CALL_MARK, TOOL_CALL_END) if mark in vocabulary}
    return "\n".join(line if ": %json " in line else _spelled(line, marks) for line in text.split("\n"))


def _spelled(line: str, marks: dict[str, str]) -> str:
    if line == _LAZY and f'"{TOOL_CALL_MARK}"' in marks:
        line = f'opening: TEXT? "{TOOL_CALL_MARK}"'
    for mark, token in marks.items():
        line = line.replace(mark, token)
    return line

"""Adapts reply grammars to vLLM's llguidance."""

from learnloop_service.training.engine.text.tokens import ChatTokenizer


def for_vllm(text: str, tokenizer: ChatTokenizer) -> str:
    """Return the grammar with the marks of tool calls as single tokens, if the tokenizer has them.

    In our vocabulary a mark is text that other tokens can spell too. vLLM builds its vocabulary from the same
    tokenizer, but treats a forced mark's text as its token and then refuses that token. A lexeme cannot contain a
    token, so the one before the first call ends without it; texts cannot contain a mark anyway.
    """
    vocabulary = tokenizer.fast.get_vocab()
    format_marks = (tokenizer.tool_format.opening.strip(), tokenizer.tool_format.closing.strip())
    marks = {f'"{mark}"': f"<[{vocabulary[mark]}]>" for mark in format_marks if mark in vocabulary}
    return "\n".join(line if ": %json " in line else _spelled(line, marks) for line in text.split("\n"))


def _spelled(line: str, marks: dict[str, str]) -> str:
    for mark in marks:
        if line == f"opening[lazy]: TEXT {mark}":
            line = f"opening: TEXT? {mark}"
    for mark, token in marks.items():
        line = line.replace(mark, token)
    return line

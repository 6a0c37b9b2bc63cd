"""Grammars as vLLM's llguidance needs them, tried with the vocabulary that it makes of the tokenizer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

import learnloop_service.training.engine
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.reply_grammar import reply_grammar
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.vllm.grammar import for_vllm
from learnloop_service.training.protocol.tool_formats.formats import HERMES

TINY = Path(learnloop_service.training.engine.__path__[0]) / "tiny_base" / "model"
CALL = '<tool_call>\n{"name": "find", "arguments": {"word": "kickoff"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(TINY)


def _grammar(**fields: Any) -> str:
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters, "strict": True}}
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [tool], **fields}
    grammar = reply_grammar(EngineChatRequest.model_validate(body), HERMES)
    assert grammar is not None
    return grammar.text


def _accepts(tokenizer: ChatTokenizer, text: str, reply: str) -> bool:
    """Whether each token of the reply, and then its end, is allowed and taken."""
    vocabulary = from_tokenizer(PreTrainedTokenizerFast.from_pretrained(TINY))
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(text))
    assert not matcher.get_error()
    for id in [*tokenizer.fast.encode(reply), tokenizer.fast.eos_token_id]:
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        if not allowed[id] or not matcher.consume_token(id):
            return False
    return True


@pytest.mark.parametrize(
    ("fields", "replies", "not_replies"),
    [
        ({"tool_choice": "required"}, [CALL, CALL + CALL, CALL + "\n" + CALL], ["no", "no" + CALL]),
        ({"tool_choice": "auto"}, [CALL, "no", "well: " + CALL, CALL + " and " + CALL + " done"], []),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, [CALL, "no", "well: " + CALL], [CALL + CALL]),
    ],
    ids=["required", "auto", "one"],
)
def test_calls(tokenizer: ChatTokenizer, fields: dict[str, Any], replies: list[str], not_replies: list[str]) -> None:
    text = for_vllm(_grammar(**fields), tokenizer)
    assert [_accepts(tokenizer, text, reply) for reply in replies] == [True] * len(replies)
    assert [_accepts(tokenizer, text, reply) for reply in not_replies] == [False] * len(not_replies)

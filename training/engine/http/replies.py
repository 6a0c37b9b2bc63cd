"""Converts samples to assistant messages and choices in OpenAI's form."""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.sampling.requests import Sample
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.stop_reason import STOP_REASON
from learnloop_service.training.protocol.tool_formats.formats import Reply

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Looks up the bytes of single tokens, each only once."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, list[int] | None] = {}

    def bytes_of(self, token: int) -> list[int] | None:
        """Return the token's bytes, or None if the tokenizer does not reveal them."""
        if token not in self._bytes:
            self._bytes[token] = self._find(token)
        return self._bytes[token]

    def _find(self, token: int) -> list[int] | None:
        if token in self._tokenizer.stop_ids:
            return list(self._tokenizer.piece(token).encode())
        text = self._tokenizer.decode([token])
        if "\ufffd" not in text:
            return list(text.encode())
        # The token is part of a character. Byte-level BPE writes each byte as a letter of GPT-2's alphabet,
        # sentencepiece as <0xNN>.
        piece = self._tokenizer.piece(token)
        if match := _BYTE_TOKEN.fullmatch(piece):
            return [int(match[1], 16)]
        if all(letter in _GPT2_BYTES for letter in piece):
            return [_GPT2_BYTES[letter] for letter in piece]
        return None


def _gpt2_bytes() -> dict[str, int]:
    """Return the byte of every letter in GPT-2's byte alphabet: printable ones represent themselves, the rest start at
    U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_GPT2_BYTES = _gpt2_bytes()


def _read(request: EngineChatRequest, tokenizer: ChatTokenizer, sample: Sample, prompt: Sequence[int]) -> Reply:
    """Read a sample. A call that was cut off stays content."""
    text = reply_text(tokenizer, sample)
    if not request.offered_tools:
        parsed = tokenizer.parse(text, in_thought=tokenizer.opens_thought(prompt))
        return Reply(parsed.content if tokenizer.tool_format.in_channels and not parsed.tool_calls else text, ())
    # The same call in two turns gets different ids, and the same sample always gets the same id.
    digest = blake2b(repr((tuple(prompt), sample.ids)).encode(), digest_size=12).hexdigest()
    opened = tokenizer.opens_thought(prompt)
    return tokenizer.parse(text, call_seed=digest, in_thought=opened, tools=request.offered_tools)


def _message(reply: Reply) -> dict[str, Json]:
    message: dict[str, Json] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def reply_text(tokenizer: ChatTokenizer, sample: Sample) -> str:
    """Return the sample's text without its stop token and without the stop string that ended it.

    The end mark of a tool call is kept as part of the call if the reply was to end after the first call.
    """
    text = tokenizer.decode(sample.ids)
    before, stop, _ = text.partition(sample.stop_text) if sample.stop_text else (text, "", "")
    return before + stop if stop == closing_mark(tokenizer) else before


def closing_mark(tokenizer: ChatTokenizer) -> str:
    """Return the mark that ends a tool call, or an empty string if calls have none."""
    return tokenizer.tool_format.call_end or tokenizer.tool_format.closing.strip()


def choice(
    request: EngineChatRequest,
    tokenizer: ChatTokenizer,
    texts: TokenTexts,
    sample: Sample,
    prompt: Sequence[int],
    index: int,
    logprobs: bool,
) -> dict[str, Json]:
    """Return a choice of a chat completion. With logprobs its tokens are `token_id:N`, which training needs.

    `malformed_tool_call` says in a sentence why a text that looks like a tool call cannot be read as one.
    """
    reply = _read(request, tokenizer, sample, prompt)
    message = _message(reply)
    more = {MALFORMED: reply.malformed} if reply.malformed else {}
    if sample.stop_text in request.stop:
        more[STOP_REASON] = sample.stop_text
    return {
        "index": index,
        "message": message,
        "finish_reason": finish_reason(message, sample),
        "logprobs": {"content": token_logprobs(texts, sample), "refusal": None} if logprobs else None,
        **more,
    }


def finish_reason(message: Mapping[str, Json], sample: Sample) -> str:
    """Return the finish reason: tool_calls, length or stop."""
    return "tool_calls" if message.get("tool_calls") else sample.finish_reason


def token_logprobs(texts: TokenTexts, sample: Sample) -> list[dict[str, Json]]:
    """Return a sample's logprobs content in OpenAI's form."""
    top = sample.top or [[]] * len(sample.ids)
    return [
        {
            "token": f"token_id:{token}",
            "bytes": texts.bytes_of(token),
            "logprob": logprob,
            "top_logprobs": [
                {"token": f"token_id:{other}", "bytes": texts.bytes_of(other), "logprob": value}
                for other, value in others
            ],
        }
        for token, logprob, others in zip(sample.ids, sample.logprobs, top, strict=True)
    ]


def usage(samples: Sequence[Sample]) -> dict[str, Json]:
    """Return the token counts of one request. A prompt counts once, however many choices it has."""
    prompt = samples[0].prompt_tokens
    completion = sum(len(sample.ids) for sample in samples)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": samples[0].cached_tokens},
    }

"""Constrained decoding: which tokens can come next if a reply is to keep to a grammar. llguidance does the parsing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

LIMITS = LLParserLimits(step_lexer_fuel=50_000, step_max_items=20_000, max_lexer_states=20_000, verbose_errors=False)
"""For one token a few milliseconds, because the whole batch waits, and for one grammar some tens of megabytes."""

FORCED_CHARACTERS = 256
"""Length to which a text without alternatives is tokenized; more where the vocabulary has longer tokens than usual."""

Bits = npt.NDArray[np.uint8]
"""A bit for each token id, the lowest first."""


class BadGrammar(ValueError):
    """No reply can be held to this grammar, or not of this model."""


class Vocabulary:
    """The tokens of a tokenizer as bytes, in the form in which grammars are compiled for it. Takes a while to make."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        """`tokenizer` is a ChatTokenizer's. Raises BadGrammar for one that does not say which bytes its tokens are."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer) or not stop_ids:
            raise BadGrammar("the model's tokenizer does not say which bytes its tokens are")
        cutter = Tokenizer.from_str(backend.to_str())
        cutter.no_padding()
        cutter.no_truncation()
        try:
            known = LLTokenizer(cutter.to_str(), eos_token=list(stop_ids))
        except ValueError as error:
            raise BadGrammar(f"the model's tokenizer does not say which bytes its tokens are: {error}") from error
        added = tokenizer.added_tokens_decoder
        cutter.encode_special_tokens = True
        # Marks such as <tool_call> are added tokens, yet text: they can also be written with other tokens.
        texts = [
            added[id].content.encode() if id in added else known.decode_bytes([id]) for id in range(known.vocab_size)
        ]
        tokens = _Tokens(
            cutter,
            texts,
            [id for id, token in added.items() if token.special],
            min(stop_ids),
            max(FORCED_CHARACTERS, 4 * max(map(len, texts))),
        )
        self.tokens = LLTokenizer(TokenizerWrapper(tokens), eos_token=sorted(stop_ids))


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What TokenizerWrapper asks for."""

    tokenizer: Tokenizer
    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    eos_token_id: int
    longest: int
    """Characters of a text that are tokenized at most."""
    bos_token_id: None = None

    def __call__(self, text: str) -> list[int]:
        """How the tokenizer cuts a text to which there is no alternative; what looks like a stop token is text.

        llguidance uses the first of these tokens, and asks again for the rest of the text after each. A pattern of a
        few bytes can force megabytes, so only the beginning of a long text is cut.
        """
        # Unlike `encode`, this releases the GIL.
        [cut] = self.tokenizer.encode_batch([text[: self.longest]], add_special_tokens=False)
        return list(cut.ids)


class Grammar:
    """A grammar that is compiled for a vocabulary. It is not changed by use, from whatever thread."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        """`text` is in llguidance's form of Lark. Raises BadGrammar."""
        self.text = text
        self._matcher = LLMatcher(vocabulary.tokens, LLMatcher.grammar_from_lark(text), log_level=0, limits=LIMITS)
        if self._matcher.is_error():
            raise BadGrammar(without_position(self._matcher.get_error()))
        first = self.begin()
        if not first.allowed().any() or first.error:
            raise BadGrammar("no reply satisfies it")

    def begin(self) -> "Constraint":
        """For one reply, from its start."""
        return Constraint(self._matcher.deep_copy())


class Constraint:
    """How far one reply has come in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str:
        """Why it cannot be followed any more, because a limit was exceeded; empty while it can."""
        return without_position(self._matcher.get_error())

    def allowed(self) -> Bits:
        """The tokens that can come next; stop tokens where the reply is complete. After an error: only those."""
        return np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)

    def take(self, token: int) -> bool:
        """Go on by a token; False if the constraint is in error."""
        return bool(self._matcher.consume_token(token))


def without_position(message: str) -> str:
    """An error of llguidance without the position in the grammar, which is ours, and the lines that show it."""
    said = re.split(r"\n +\d+ \|", message, maxsplit=1)[0].rpartition("failed to compile JSON schema: ")[2]
    return " ".join(said.split())

"""Constrained decoding: the tokens that can come next if a reply is to conform to a grammar. llguidance does the
parsing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

LIMITS = LLParserLimits(step_lexer_fuel=50_000, step_max_items=20_000, max_lexer_states=20_000, verbose_errors=False)
"""Limits of the parser: a few milliseconds per token, because the whole batch waits, and some tens of megabytes per
grammar."""

FORCED_CHARACTERS = 256
"""Number of characters of a forced text that are tokenized. It is larger for vocabularies with unusually long
tokens."""

Bits = npt.NDArray[np.uint8]
"""A bitmask with one bit per token id, lowest first."""


class BadGrammar(ValueError):
    """Replies cannot be constrained to this grammar, or not with this model."""


class Vocabulary:
    """The tokens of a tokenizer as bytes, in the form that grammars are compiled for. Building it takes a while."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        """`tokenizer` is that of a ChatTokenizer. Raises BadGrammar if it does not reveal which bytes its tokens
        are."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer) or not stop_ids:
            raise BadGrammar("the model's tokenizer does not say which bytes its tokens are")
        cutter = Tokenizer.from_str(backend.to_str())
        cutter.no_padding()
        cutter.no_truncation()
        try:
            plain = LLTokenizer(cutter.to_str(), eos_token=list(stop_ids))
        except ValueError as error:
            raise BadGrammar(f"the model's tokenizer does not say which bytes its tokens are: {error}") from error
        added = tokenizer.added_tokens_decoder
        cutter.encode_special_tokens = True
        # Marks such as <tool_call> are added tokens but still text, which other tokens can spell too.
        texts = [
            added[id].content.encode() if id in added else plain.decode_bytes([id]) for id in range(plain.vocab_size)
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
    """The tokenizer interface that TokenizerWrapper requires."""

    tokenizer: Tokenizer
    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    eos_token_id: int
    longest: int
    """Maximum number of characters of a text to tokenize."""
    bos_token_id: None = None

    def __call__(self, text: str) -> list[int]:
        """Tokenize a text that the grammar forces. Text that looks like a stop token is treated as text.

        llguidance uses the first of these tokens and asks again for the rest of the text after each. A pattern of a few
        bytes can force megabytes, so only the beginning of a long text is tokenized.
        """
        # Unlike `encode`, this releases the GIL.
        [cut] = self.tokenizer.encode_batch([text[: self.longest]], add_special_tokens=False)
        return list(cut.ids)


class Grammar:
    """A grammar compiled for a vocabulary. It is immutable and can be used from any thread."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        """`text` is in llguidance's variant of Lark. Raises BadGrammar."""
        self.text = text
        self._matcher = LLMatcher(vocabulary.tokens, LLMatcher.grammar_from_lark(text), log_level=0, limits=LIMITS)
        if self._matcher.is_error():
            raise BadGrammar(without_position(self._matcher.get_error()))
        first = self.begin()
        if not first.allowed().any() or first.error:
            raise BadGrammar("no reply satisfies it")

    def begin(self) -> "Constraint":
        """Return a constraint for one reply, at its start."""
        return Constraint(self._matcher.deep_copy())


class Constraint:
    """The position of one reply in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str:
        """The reason why the grammar cannot be followed any further, which is an exceeded limit; empty if there is
        none."""
        return without_position(self._matcher.get_error())

    def allowed(self) -> Bits:
        """Return the tokens that can come next, including stop tokens if the reply is complete. After an error only
        stop tokens are allowed."""
        return np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)

    def take(self, token: int) -> bool:
        """Advance by a token. Return False if the constraint is in error."""
        return bool(self._matcher.consume_token(token))


def without_position(message: str) -> str:
    """Return an error message of llguidance without the position in the internal grammar and the lines that show it."""
    text = re.split(r"\n +\d+ \|", message, maxsplit=1)[0].rpartition("failed to compile JSON schema: ")[2]
    return " ".join(text.split())

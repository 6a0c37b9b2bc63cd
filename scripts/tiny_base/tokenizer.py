"""The tiny base's tokenizer: byte-level BPE with 1,024 tokens, split so that copying is easy.

A capitalised name, an id or a value is split in the same way after a space, a quote or a line start: spaces join
lower-case words only, digits are separate tokens, and JSON glue such as `": ["` is one piece. A small model therefore
copies by repeating tokens and never has to respell. The size is a compromise: with 2,048 tokens, many are too rare to
be copied well, and with single syllables, all are too common to be found again.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1_024
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
_CONTROL = (PADDING, "<|im_start|>", END_OF_TURN)
_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_PIECES = r" ?[a-z_]+|[A-Z][a-z]*|20\d\d(?!\d)|\d| ?[^\sA-Za-z\d]+ ?[^\sA-Za-z\d]*\n*|\s"
_SPLIT = re.compile("|".join(map(re.escape, (*_CONTROL, *_MARKS))))


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Learn the merges from rendered conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_MARKS),
        special_tokens=[AddedToken(token, special=True) for token in _CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # A rendered call or result is between marks, which must not be learned as text.
    tokenizer.train_from_iterator((piece for text in texts for piece in _SPLIT.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(token, special=False) for token in _MARKS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context: int) -> None:
    """Write the tokenizer in Hugging Face's layout, with the chat template."""
    template = (
        files("learnloop_service.training.engine.tiny_base").joinpath("chat_template.jinja").read_text(encoding="utf-8")
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=PADDING, model_max_length=context
    )
    fast.chat_template = template
    fast.save_pretrained(directory)

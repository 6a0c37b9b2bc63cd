"""A tokenizer without transformers, whose import takes longer than starting the rest of the engine.

`PlainTokenizer` has the part of `transformers.TokenizersBackend` that we use, on top of the same library. It reads only
files that need nothing else: a complete `tokenizer.json` and one of our chat templates. Other templates are untrusted
code, which transformers runs safely.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

from learnloop_service.environment.json_type import Json

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
"""Chat template of models that come without one."""
_WITH_BOS = "{{- bos_token }}"
_OUR_TEMPLATES = (CHAT_TEMPLATE, Path(__file__).parents[1] / "tiny_base" / "chat_template.jinja")
_MODEL_TYPES = ("llama", "qwen3")
"""Supported model types. For others, transformers may substitute a tokenizer other than the one in the files."""
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_SETTINGS = {"backend", "clean_up_tokenization_spaces", "is_local", "model_max_length", "tokenizer_class", *_SPECIAL}
_FOREIGN_FILES = ("added_tokens.json", "special_tokens_map.json", "tokenizer.model")
_MOST_TOKENS = 100_000
"""Size above which transformers checks vocabularies for known mistakes."""


class PlainTokenizer:
    """A tokenizer whose methods and properties are those of the same names in transformers. It is thread-safe."""

    def __init__(self, tokenizer: Tokenizer, special: Mapping[str, str], chat_template: str) -> None:
        self.backend_tokenizer = tokenizer
        self.chat_template = chat_template
        self.eos_token = special["eos_token"]
        self.eos_token_id = tokenizer.token_to_id(self.eos_token)
        self._special = special

    @classmethod
    def read(cls, directory: Path) -> "PlainTokenizer | None":
        """Read the tokenizer of a model directory, or return None if transformers should read it."""
        try:
            return cls._read(directory)
        except Exception:  # the library raises plain Exceptions; transformers will report the problem
            return None

    @classmethod
    def _read(cls, directory: Path) -> "PlainTokenizer | None":
        settings = json.loads((directory / "tokenizer_config.json").read_text())
        template = directory / "chat_template.jinja"
        text = (template if template.exists() else CHAT_TEMPLATE).read_text()
        special = {name: settings[name] for name in _SPECIAL if settings.get(name) is not None}
        if (
            settings["tokenizer_class"] != "TokenizersBackend"
            or not settings.keys() <= _SETTINGS
            or "eos_token" not in special
            or json.loads((directory / "config.json").read_text())["model_type"] not in _MODEL_TYPES
            or any((directory / name).exists() for name in _FOREIGN_FILES)
            or not is_ours(text)
        ):
            return None
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        if not template.exists():
            text = stand_in(tokenizer.encode("a").ids, tokenizer.token_to_id(special.get("bos_token", "")))
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        cuts_or_fills = tokenizer.truncation is not None or tokenizer.padding is not None
        if cuts_or_fills or tokenizer.get_vocab_size() > _MOST_TOKENS or not added.issuperset(special.values()):
            return None
        return cls(tokenizer, special, text)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        decoder: dict[int, AddedToken] = self.backend_tokenizer.get_added_tokens_decoder()
        return decoder

    def get_vocab(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        if clean_up_tokenization_spaces:
            raise NotImplementedError
        return str(self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, id: int) -> str | None:
        token: str | None = self.backend_tokenizer.id_to_token(id)
        return token

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Json]],
        tools: Sequence[Json] | None = None,
        *,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        if tokenize:
            raise NotImplementedError
        if not conversation or not all(isinstance(tool, dict) for tool in tools or ()):
            raise ValueError("there must be a message, and tools must be objects")
        return _compiled(self.chat_template).render(
            **self._special, messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt
        )


def stand_in(encoded: Sequence[int], bos: int | None) -> str:
    """Return the chat template of a model without one. It begins with BOS if the tokenizer begins a text with it, as
    `encoded` shows."""
    return (_WITH_BOS if bos is not None and bos in encoded[:1] else "") + CHAT_TEMPLATE.read_text()


def is_ours(chat_template: object) -> bool:
    """Whether a chat template is one of those that come with Learnloop. Others are untrusted code."""
    return chat_template in _our_templates()


@cache
def _our_templates() -> tuple[str, ...]:
    ours = tuple(path.read_text() for path in _OUR_TEMPLATES)
    return (*ours, _WITH_BOS + CHAT_TEMPLATE.read_text())


@lru_cache(len(_OUR_TEMPLATES) + 1)
def _compiled(chat_template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json  # jinja's own filter is for HTML
    return environment.from_string(chat_template)


def _to_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)

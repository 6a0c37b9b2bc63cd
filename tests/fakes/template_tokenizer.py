"""The tiny base's tokenizer with the chat template and the special tokens of another family, without weights."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import learnloop_service.training.engine.tiny_base
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests import unit

TEMPLATES = Path(unit.__path__[0]) / "engine" / "chat_templates"
OWN = Path(learnloop_service.training.engine.tiny_base.__path__[0]) / "model"


def template_tokenizer(
    directory: Path,
    template: str | None,
    special: Sequence[str] = (),
    ends: Sequence[str] | None = (),
    bos: str | None = None,
) -> ChatTokenizer:
    """Make the directory with the template of that name, or none, and load it.

    `special` are added to the special tokens. `ends` are those that end replies, the first of which is the tokenizer's
    own end; with None, there is no generation config. `bos` is the token that a template calls bos_token.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(OWN / name, directory / name)
    if template is not None:
        (directory / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text())
    ids = _with_special(directory / "tokenizer.json", special)
    if bos:
        settings = json.loads((directory / "tokenizer_config.json").read_text())
        (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": bos}))
    if ends:
        settings = json.loads((directory / "tokenizer_config.json").read_text())
        (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": ends[0]}))
        named = sorted(ids[end] for end in ends)
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    return ChatTokenizer(directory)


def _with_special(path: Path, special: Sequence[str]) -> dict[str, int]:
    """Add special tokens after all others, and return the ids of the special tokens."""
    content = json.loads(path.read_text())
    added = content["added_tokens"]
    existing = {token["content"] for token in added}
    following = 1 + max(token["id"] for token in added)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added += [
        {"id": id, "content": text, **flags} for id, text in enumerate(sorted(set(special) - existing), following)
    ]
    path.write_text(json.dumps(content))
    return {token["content"]: token["id"] for token in added}

"""Mends the defects of a base model's copy that an examination found. The original files stay as they are."""

import json
import re
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from learnloop_service.training.bases.report import Defects, Finding, FindingSeverity

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_INDEX = "model.safetensors.index.json"

_NAME = r"(?P<quote>\\?[\"'])name(?P=quote)\s*:"
_INNER = r"(?:[^{}]|\{[^{}]*\}|\{\{[^{}]*\}\})*"
_DOUBLED = re.compile(r"\{\{(\s*" + _NAME + _INNER + r")\}\}")
"""A call in doubled braces. An expression of Jinja cannot begin so, so it is always text of a template."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def mend(directory: Path, defects: Defects) -> tuple[Finding, ...]:
    """Mend the defects as far as possible, and return what was done. The files must be intact."""
    return tuple(_mended(directory, defects))


def _mended(directory: Path, defects: Defects) -> Iterator[Finding]:
    if defects.repeated_head and tie_head(directory):
        yield _note("head", "Its output head was the embedding, stored a second time; the copy has it once, tied.")
    if defects.stop_ids:
        change = partial(_with_stop_ids, stop_ids=defects.stop_ids)
        _change(directory / "generation_config.json", change)
        yield _note("stop tokens added", "The copy names all of its end tokens, so that each ends a reply.")
    if defects.doubled_braces and _single_braces(directory):
        yield _note("braces", 'The chat template showed calls as `{{"name": ...}}`; the copy shows `{"name": ...}`.')
    if defects.untrained_marks and _unmark(directory, defects.untrained_marks):
        marks = ", ".join(map(json.dumps, defects.untrained_marks))
        yield _note("marks", f"{marks} were never trained as tokens; in the copy they are ordinary text.")


def _note(name: str, text: str) -> Finding:
    return Finding(name, FindingSeverity.NOTE, text)


def _with_stop_ids(config: dict[str, Any], stop_ids: Collection[int]) -> dict[str, Any]:
    """Return the config with all stop tokens, first those that it names already."""
    named = config.get("eos_token_id")
    listed: list[Any] = named if isinstance(named, list) else [named]
    before = [id for id in listed if id in stop_ids]
    return {**config, "eos_token_id": [*before, *sorted(set(stop_ids) - set(before))]}


def _single_braces(directory: Path) -> bool:
    """Write calls in single braces, and return whether a template had others."""
    changed = False
    template = directory / "chat_template.jinja"
    if template.is_file():
        text = template.read_text(encoding="utf-8")
        template.write_text(single_braces(text), encoding="utf-8")
        changed = single_braces(text) != text
    config = directory / "tokenizer_config.json"
    if config.is_file() and (named := _object(config).get("chat_template")):
        new = _in_all(named)
        _change(config, lambda settings: {**settings, "chat_template": new})
        changed = changed or new != named
    return changed


def _in_all(templates: Any) -> Any:
    """Mend the template of a tokenizer's config, or each of several that have names."""
    if isinstance(templates, str):
        return single_braces(templates)
    if isinstance(templates, list):
        return [{**template, "template": single_braces(template["template"])} for template in templates]
    return templates


def single_braces(template: str) -> str:
    """Return a chat template whose calls are in single braces."""
    return _DOUBLED.sub(lambda match: "{" + match[1].replace("{{", "{").replace("}}", "}") + "}", template)


def _unmark(directory: Path, marks: Collection[str]) -> bool:
    """Make tokens ordinary text, with the ids of all others unchanged. Returns False if the kind of tokenizer does not
    allow it: only the files of `tokenizers` do, whose vocabulary is not searched for the longest entry."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return False
    vocabulary = _object(path)["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return False
    for name, change in _CHANGES.items():
        if (directory / name).is_file():
            _change(directory / name, lambda content, change=change: change(content, marks, vocabulary))  # type: ignore[misc]
    return True


def _unmarked(
    entry: dict[str, Any], marks: Collection[str], vocabulary: Collection[str], id: int
) -> dict[str, Any] | None:
    """Return the entry of an added token, or None if it is to be left out.

    Added tokens that the vocabulary does not have are numbered in their order. Such a mark leaves an entry that no text
    contains, so that those after it keep their ids.
    """
    if entry["content"] not in marks:
        return entry
    return None if entry["content"] in vocabulary else {**entry, "content": f"<|unmarked_{id}|>", "special": True}


def _in_tokenizer(tokenizer: dict[str, Any], marks: Collection[str], vocabulary: Collection[str]) -> dict[str, Any]:
    added = (_unmarked(entry, marks, vocabulary, entry["id"]) for entry in tokenizer["added_tokens"])
    return {**tokenizer, "added_tokens": [entry for entry in added if entry is not None]}


def _in_settings(settings: dict[str, Any], marks: Collection[str], vocabulary: Collection[str]) -> dict[str, Any]:
    new = dict(settings)
    if isinstance(decoder := settings.get("added_tokens_decoder"), dict):
        unmarked = {id: _unmarked(entry, marks, vocabulary, int(id)) for id, entry in decoder.items()}
        new["added_tokens_decoder"] = {id: entry for id, entry in unmarked.items() if entry is not None}
    for name in _LISTS:
        if isinstance(settings.get(name), list):
            new[name] = [token for token in settings[name] if _content(token) not in marks]
        elif isinstance(settings.get(name), dict):
            new[name] = {key: token for key, token in settings[name].items() if _content(token) not in marks}
    return new


def _in_numbers(numbers: dict[str, Any], marks: Collection[str], vocabulary: Collection[str]) -> dict[str, Any]:
    unmarked = ((_unmarked({"content": token}, marks, vocabulary, id), id) for token, id in numbers.items())
    return {entry["content"]: id for entry, id in unmarked if entry is not None}


_CHANGES: dict[str, Callable[[dict[str, Any], Collection[str], Collection[str]], dict[str, Any]]] = {
    "tokenizer.json": _in_tokenizer,
    "tokenizer_config.json": _in_settings,
    "special_tokens_map.json": _in_settings,
    "added_tokens.json": _in_numbers,
}


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def tie_head(directory: Path) -> bool:
    """Store the embedding once where the files have it a second time, as output head: keep the head's values under the
    embedding's name. Return whether the files had both.

    The head's are the more exact ones where the two were quantized differently. The files must be intact.
    """
    headers = {path: _header(path) for path in sorted(directory.glob("*.safetensors"))}
    files_of = {name: path for path, header in headers.items() for name in header if name in (_EMBEDDING, _HEAD)}
    if files_of.keys() != {_EMBEDDING, _HEAD}:
        return False
    for path in {*files_of.values()}:
        _write_tied(path, headers[path])
    _change(directory / "config.json", lambda config: {**config, "tie_word_embeddings": True})
    if (index := directory / _INDEX).is_file():
        _change(index, lambda content: {**content, "weight_map": _tied_map(content["weight_map"])})
    return True


def _tied_map(weight_map: Mapping[str, str]) -> dict[str, str]:
    files = {**weight_map, _EMBEDDING: weight_map[_HEAD]}
    return {name: file for name, file in files.items() if name != _HEAD}


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return header


def _write_tied(path: Path, header: Mapping[str, Any]) -> None:
    """Write a file again without its embedding, and with its head as embedding."""
    remaining = {name: tensor for name, tensor in header.items() if name not in ("__metadata__", _EMBEDDING)}
    ranges = sorted((tensor["data_offsets"][0], tensor["data_offsets"][1], name) for name, tensor in remaining.items())
    new: dict[str, Any] = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}
    position = 0
    for start, end, name in ranges:
        stored = {**remaining[name], "data_offsets": [position, position + end - start]}
        new[_EMBEDDING if name == _HEAD else name] = stored
        position += end - start
    text = json.dumps(new, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with path.open("rb") as source, unfinished.open("wb") as target:
        (length,) = struct.unpack("<Q", source.read(8))
        target.write(struct.pack("<Q", len(text)) + text)
        for start, end, _ in ranges:
            source.seek(8 + length + start)
            for piece in _pieces(source, end - start):
                target.write(piece)
    shutil.copymode(path, unfinished)
    unfinished.replace(path)


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (piece := file.read(min(size, 16 << 20))):
        size -= len(piece)
        yield piece


def _object(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _change(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a file with a JSON object, which may be missing."""
    content = _object(path) if path.is_file() else {}
    path.write_text(json.dumps(change(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

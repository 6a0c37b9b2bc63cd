"""Base models from outside that are made to stop the engine."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.tiny_model import make_tiny_model

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LATER = "{% if messages[0]['content'] == 'loop' %}" + LOOP + "{% elif messages[0]['content'] == 'text' %}"
LATER += "{{ 'x' * 3000000000 }}{% else %}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
LATER += "{% endif %}"


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def lie(path: Path, change: Callable[[Any], object]) -> None:
    """Change the header of a safetensors file and keep its content."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header["model.norm.weight"])
    written = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(written)) + written + content[8 + length :])


def _template(text: str) -> Callable[[Path], object]:
    return lambda base: (base / "chat_template.jinja").write_text(text)


def _tokens(base: Path, count: int = 3_000_000) -> None:
    path = base / "tokenizer.json"
    text = path.read_text()
    # As text, since writing that many entries as JSON takes seconds.
    more = "".join([f'"{number:x}~": {number}, ' for number in range(len(json.loads(text)["model"]["vocab"]), count)])
    begin, vocabulary, end = text.partition('"vocab": {')
    path.write_text(begin + vocabulary + more + end)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a template that loops": (_template(LOOP), "rendering it takes too long"),
    "a template that builds 3 GB": (_template("{{ 'x' * 3000000000 }}"), "too much memory"),
    "a million layers": (
        lambda base: _edit(base / "config.json", lambda config: config.update(num_hidden_layers=1_000_000)),
        "num_hidden_layers is 1000000, and the weights have",
    ),
    "three million tokens": (_tokens, "tokenizer.json: it "),
    "a shape that is a word": (
        lambda base: lie(base / "model.safetensors", lambda tensor: tensor.update(shape="wide")),
        "model.safetensors: its header is damaged",
    ),
    "a shape without its bytes": (
        lambda base: lie(base / "model.safetensors", lambda tensor: tensor.update(shape=[1 << 20, 1 << 20])),
        "model.safetensors: its header is damaged",
    ),
    "no shape": (
        lambda base: lie(base / "model.safetensors", lambda tensor: tensor.pop("shape")),
        "model.safetensors: its header is damaged",
    ),
    "a link that leaves": (
        lambda base: (base / "vocab.txt").symlink_to("/etc/hostname"),
        "vocab.txt: it is a link that leaves the directory",
    ),
}
"""By name: what makes a good base model hostile, and the reason for which it is refused."""


def hostile_base(directory: Path, name: str) -> Path:
    """Make the base model of that name in HOSTILE."""
    make_tiny_model(directory)
    HOSTILE[name][0](directory)
    return directory


def later_hostile_base(directory: Path) -> Path:
    """Make a base model whose template is harmless until the first message is `loop` or `text`."""
    make_tiny_model(directory)
    (directory / "chat_template.jinja").write_text(LATER)
    return directory

"""The supervised corpus: careless demonstrations of both environments as token ids, made by many processes.

A conversation is tokenised as the engine does it: what the agent wrote apart from what it read, so that
training meets the same pieces as sampling.
"""

import asyncio
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from multiprocessing import get_context
from random import Random

import numpy as np
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from environment.base import Json
from environment.email_search.synthetic import make_world as make_inbox
from environment.email_search.tools import TOOLS as EMAIL_TOOLS
from environment.sales_email.synthetic import make_world as make_graph
from environment.sales_email.tools import TOOLS as SALES_TOOLS
from training.engine.tiny_base import careless_email, careless_sales

WORLD_SEED = 1_000_000
"""Seeds of demonstrated worlds start here; the demo's and the tests' lie below. The split is `train`."""
_BLOCK = 1_000
"""Conversations that one process makes at a time."""
_AGENT = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)
_TEMPLATE = files("training.engine.tiny_base").joinpath("chat_template.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Conversations end to end: `agent` marks the tokens that the agent wrote, `starts` ends with their number."""

    tokens: np.ndarray
    agent: np.ndarray
    starts: np.ndarray


def conversation(index: int, seed: int, email_share: float) -> str:
    """Demonstration number `index`, rendered by the chat template."""
    rng = Random(f"demonstration:{seed}:{index}")
    if rng.random() < email_share:
        messages = asyncio.run(careless_email.demonstrate(make_inbox("train", WORLD_SEED + seed, index), rng))
        tools = EMAIL_TOOLS
    else:
        messages = asyncio.run(careless_sales.demonstrate(make_graph("train", WORLD_SEED + seed, index), rng))
        tools = SALES_TOOLS
    return _render(messages, [tool.openai() for tool in tools])


def _render(messages: Sequence[dict[str, Json]], tools: list[dict[str, Json]]) -> str:
    shown = [
        {
            **message,
            "tool_calls": [
                {"function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in message.get("tool_calls", ())
            ],
        }
        for message in messages
    ]
    return render_jinja_template([shown], tools=[*tools], chat_template=_TEMPLATE)[0][0]


def encode(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[bool]]:
    """Token ids of a rendered conversation, and which of them the agent wrote."""
    ids: list[int] = []
    agent: list[bool] = []
    for position, piece in enumerate(_AGENT.split(text)):
        piece_ids = tokenizer.encode(piece, add_special_tokens=False).ids
        ids += piece_ids
        agent += [position % 2 == 1] * len(piece_ids)
    return ids, agent


def _block(job: tuple[str, range, int, float]) -> tuple[bytes, bytes, list[int]]:
    tokenizer_json, indexes, seed, email_share = job
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokens, agent, lengths = array("H"), array("b"), list[int]()
    for index in indexes:
        ids, mask = encode(tokenizer, conversation(index, seed, email_share))
        tokens.extend(ids)
        agent.extend(mask)
        lengths.append(len(ids))
    return tokens.tobytes(), agent.tobytes(), lengths


def make_corpus(tokenizer: Tokenizer, tokens: int, seed: int, email_share: float, processes: int) -> Corpus:
    """At least `tokens` tokens of demonstrations; how many more depends on `processes`."""
    text = tokenizer.to_str()
    parts: list[tuple[bytes, bytes, list[int]]] = []
    made = 0
    with get_context("spawn").Pool(processes) as pool:
        while made < tokens:
            first = len(parts) * _BLOCK
            blocks = [range(start, start + _BLOCK) for start in range(first, first + processes * _BLOCK, _BLOCK)]
            parts += pool.map(_block, [(text, block, seed, email_share) for block in blocks], chunksize=1)
            made = sum(sum(part[2]) for part in parts)
    lengths = np.array([length for part in parts for length in part[2]])
    return Corpus(
        tokens=np.frombuffer(b"".join(part[0] for part in parts), dtype=np.uint16),
        agent=np.frombuffer(b"".join(part[1] for part in parts), dtype=np.bool_),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
    )

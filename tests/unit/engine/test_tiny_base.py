"""The tiny base: what ships, its tokenizer and template, the demonstrations it was made from, and the script."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from learnloop_sales.environment import SalesEmail
from learnloop_sales.synthetic import make_world as make_graph
from learnloop_service.environment.base import Environment, Json, Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.synthetic import make_world as make_inbox
from learnloop_service.environment.email_search.tools import TOOLS
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.engine.__main__ import TINY_BASE
from scripts.tiny_base import careless_email, careless_sales, corpus, make
from scripts.tiny_base.tokenizer import END_OF_TURN, PADDING, VOCABULARY


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(TINY_BASE)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def written(name: str) -> Any:
    return json.loads((TINY_BASE / name).read_text())


def encoded(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return ids


# What ships


def test_the_recipe_is_that_of_the_script_and_of_the_weights() -> None:
    manifest = written("recipe.json")
    recipe = make.BaseRecipe(**manifest["recipe"])
    assert recipe == make.BaseRecipe()
    config = written("config.json")
    shape = {
        "hidden_size": recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.key_value_heads,
        "head_dim": recipe.head_dim,
        "intermediate_size": recipe.mlp,
        "max_position_embeddings": recipe.context,
        "vocab_size": VOCABULARY,
        "model_type": "qwen3",
    }
    assert {name: config[name] for name in shape} == shape
    assert re.fullmatch("[0-9a-f]{40}", manifest["commit"])
    with safe_open(TINY_BASE / "model.safetensors", "pt") as file:
        tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 (it is no mapping)
        assert {tensor.get_dtype() for tensor in tensors} == {"BF16"}
        assert sum(torch.Size(tensor.get_shape()).numel() for tensor in tensors) == manifest["parameters"]
    assert sum(path.stat().st_size for path in TINY_BASE.iterdir()) < 5 << 20


def test_any_library_loads_it() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32)
    assert model.num_parameters() == written("recipe.json")["parameters"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([encoded("When is the kickoff?")])).logits
    assert logits.shape[-1] == VOCABULARY
    assert logits.isfinite().all()


def test_it_has_learnt_its_demonstrations() -> None:
    """New ones, of the split that nothing was trained on; a model that knows nothing has a loss of ln 1,024 = 6.9."""
    model = AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32)
    losses = []
    for number in range(4):
        world = make_inbox("test", 0, number)
        messages = asyncio.run(careless_email.demonstrate(world, Random(number)))
        ids, agent = corpus.encode(tokenizer().backend_tokenizer, rendering(messages))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")[agent[1:]])
    assert torch.cat(losses).mean() < 0.3


# Tokenizer


@given(st.text() | st.text(alphabet='Velmor tolu {}[]":,|\n0123456789é'))
def test_text_survives_tokenisation(text: str) -> None:
    assert tokenizer().decode(encoded(text)) == text


@given(
    st.integers(0, 10_000), st.sampled_from(("", " ", '"', "\n", '["', " | ", ": ")), st.sampled_from(("", '"', "\n"))
)
def test_a_name_is_cut_the_same_way_wherever_it_stands(seed: int, before: str, after: str) -> None:
    name = make_inbox("train", seed, 0).project
    cut = encoded(name)
    text = encoded(before + name + after)
    assert any(text[i : i + len(cut)] == cut for i in range(len(text)))


def test_the_vocabulary_is_whole_and_the_marks_are_tokens() -> None:
    assert len(tokenizer()) == VOCABULARY
    assert tokenizer().eos_token == END_OF_TURN
    assert tokenizer().pad_token == PADDING
    assert written("config.json")["eos_token_id"] == tokenizer().eos_token_id
    for mark in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_start|>", END_OF_TURN):
        assert len(encoded(mark)) == 1
    # The engine reads calls from decoded text, so their marks must not be skipped as special.
    assert "<tool_call>" in tokenizer().decode(encoded("<tool_call>"), skip_special_tokens=True)


# Chat template


def rendering(messages: Sequence[Json], **options: Any) -> str:
    """The messages as text, with the email tools; arguments are objects, as the engine passes them."""
    parsed = [
        message
        | {
            "tool_calls": [
                {"function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in message.get("tool_calls", ())
            ]
        }
        for message in messages
    ]
    tools: Any = [tool.openai() for tool in TOOLS]
    return str(tokenizer().apply_chat_template(parsed, tools=tools, tokenize=False, **options))


CALL = {"id": "c", "type": "function", "function": {"name": "read_email", "arguments": '{"email_id": "tolu"}'}}


def test_the_shipped_template_is_that_of_the_script() -> None:
    assert (TINY_BASE / "chat_template.jinja").read_text() == (TINY_BASE.parent / "chat_template.jinja").read_text()


def test_tools_are_signatures_and_results_are_marked() -> None:
    messages = [
        {"role": "system", "content": "You answer."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "14 March"},
        {"role": "tool", "tool_call_id": "c", "content": "15 March"},
    ]
    assert rendering(messages, add_generation_prompt=True) == (
        "<|im_start|>system\nYou answer.\n"
        "search_inbox(keywords, sender?, recipient?, sent_after?, sent_before?)\n"
        "read_email(email_id)\n"
        "return_final_answer(answer, sources)<|im_end|>\n"
        "<|im_start|>user\nWhen?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "read_email", "arguments": {"email_id": "tolu"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read_email", "arguments": {"email_id": "tolu"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n14 March\n</tool_response>\n"
        "<tool_response>\n15 March\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_system_and_tools_there_is_no_system_turn() -> None:
    rendered = tokenizer().apply_chat_template([{"role": "user", "content": "When?"}], tokenize=False)
    assert rendered == "<|im_start|>user\nWhen?<|im_end|>\n"


# Demonstrations


async def outcome_of(environment: Environment, scenario: Scenario, messages: Sequence[Json]) -> bool:
    """Whether the calls of a demonstration succeed when they are made again."""
    episode = environment.episode(scenario)
    for message in messages:
        for call in message.get("tool_calls", ()):
            await episode.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
    outcome = episode.outcome()
    [score] = (await ReferenceJudge().judge(scenario, [Candidate("", outcome, messages)])).scores
    return environment.success(outcome, score.value or 0.0)


@pytest.mark.parametrize(("name", "highest"), [("email", 0.35), ("sales", 0.2)])
async def test_demonstrations_are_careless(name: str, highest: float) -> None:
    """An expert always succeeds. The base has seen far fewer successes, but some."""
    succeeded, malformed, turns = 0, 0, 0
    for number in range(100):
        rng = Random(number)
        if name == "email":
            inbox = make_inbox("train", corpus.WORLD_SEED, number)
            scenario, messages = inbox.scenario("train"), await careless_email.demonstrate(inbox, rng)
        else:
            graph = make_graph("train", corpus.WORLD_SEED, number)
            scenario, messages = graph.scenario(), await careless_sales.demonstrate(graph, rng)
        environment: Environment = SyntheticEmailSearch() if name == "email" else SalesEmail()
        succeeded += await outcome_of(environment, scenario, messages)
        environment.close()
        replies = [message for message in messages if message["role"] == "assistant"]
        malformed += sum("tool_calls" not in message for message in replies)
        turns += len(replies)
    assert 0.05 < succeeded / 100 < highest
    assert 0 < malformed / turns < 0.05


def test_a_demonstration_is_made_again_from_its_number() -> None:
    texts = [corpus.conversation(number, 0, 0.5) for number in range(12)]
    assert texts == [corpus.conversation(number, 0, 0.5) for number in range(12)]
    assert len(set(texts)) == 12
    assert texts[0] != corpus.conversation(0, 1, 0.5)
    mails = [text for text in texts if "search_inbox" in text]
    assert 0 < len(mails) < 12
    assert all(f"train.{corpus.WORLD_SEED}." in text for text in mails)
    assert all("search_inbox" in corpus.conversation(number, 0, 1.0) for number in range(5))


@pytest.mark.parametrize("number", range(6))
def test_what_the_agent_wrote_is_marked(number: int) -> None:
    text = corpus.conversation(number, 0, 0.5)
    ids, agent = corpus.encode(tokenizer().backend_tokenizer, text)
    assert len(ids) == len(agent) < make.BaseRecipe().context
    assert tokenizer().decode(ids) == text
    wrote = tokenizer().decode([token for token, is_agents in zip(ids, agent, strict=True) if is_agents])
    turns = [turn.split(END_OF_TURN)[0] for turn in text.split("<|im_start|>assistant\n")[1:]]
    assert wrote == "".join(turn + END_OF_TURN for turn in turns)


# The script


def test_the_script_makes_a_model_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_BLOCK", 12)
    recipe = replace(
        make.BaseRecipe(), hidden=16, layers=1, heads=2, head_dim=8, mlp=16, tokens=2_000, batch_tokens=2_048
    )
    trained = tokenizer().backend_tokenizer
    small_corpus = corpus.make_corpus(trained, recipe.tokens, recipe.seed, recipe.email_share, processes=1)
    assert small_corpus.starts[-1] == len(small_corpus.tokens) == len(small_corpus.agent) >= recipe.tokens
    assert len(small_corpus.starts) == 13
    ids, agent = corpus.encode(trained, corpus.conversation(3, recipe.seed, recipe.email_share))
    span = slice(small_corpus.starts[3], small_corpus.starts[4])
    assert small_corpus.tokens[span].tolist() == ids
    assert small_corpus.agent[span].tolist() == agent
    model, loss = make.train(recipe, trained, small_corpus, torch.device("cpu"))
    assert 0 < loss < 8
    make.save(model, trained, recipe, tmp_path, loss, seconds=1.0)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() == model.num_parameters()
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer().chat_template
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"] == asdict(recipe)
    assert {field.name for field in fields(recipe)} == set(written("recipe.json")["recipe"])

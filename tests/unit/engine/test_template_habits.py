"""What chat templates take: ids of calls, system messages and several calls in one message."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import learnloop_service.training.engine.tiny_base
from learnloop_service.training.engine.text.template_habits import Habits, with_short_ids, without_system_role
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.tool_formats.formats import FORMATS

TEMPLATES = Path(__file__).parent / "chat_templates"
OWN = Path(learnloop_service.training.engine.tiny_base.__path__[0]) / "model"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def with_template(directory: Path, template: str | None) -> ChatTokenizer:
    """The tiny base's tokenizer with another chat template, or none."""
    directory.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(OWN / name, directory / name)
    if template is not None:
        (directory / "chat_template.jinja").write_text((TEMPLATES / template).read_text())
    return ChatTokenizer(directory)


def call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def test_ids_of_calls_are_nine_letters_and_digits() -> None:
    for tool_format in FORMATS.values():
        [parsed] = tool_format.read(
            tool_format.write(FORMATS["json"].find('{"name": "a", "arguments": {}}').calls)
        ).tool_calls
        assert re.fullmatch(r"[A-Za-z0-9]{9}", parsed.id)


@pytest.mark.parametrize(
    ("template", "habits"),
    [
        (None, Habits()),
        ("qwen2.5.jinja", Habits()),
        ("gemma2.jinja", Habits(tools=False, system_role=False)),
        ("llama3.1.jinja", Habits(single_call=True)),
        ("mistral_nemo.jinja", Habits(short_ids=True)),
    ],
)
def test_habits_are_found(tmp_path: Path, template: str | None, habits: Habits) -> None:
    assert with_template(tmp_path, template).habits == habits


@pytest.mark.parametrize("ids", [("call_638530a850828560b7ff6539", "call_2"), ("", ""), ("a1B2c3D4e", "c")])
def test_calls_of_other_servers_are_shown_by_a_template_with_short_ids(tmp_path: Path, ids: tuple[str, str]) -> None:
    tokenizer = with_template(tmp_path, "mistral_nemo.jinja")
    results = [{"role": "tool", "content": "four", **({"tool_call_id": id} if id else {})} for id in ids]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "How deep?"},
        {"role": "assistant", "content": "", "tool_calls": [call(id) for id in ids]},
        *results,
    ]
    text = tokenizer.decode(tokenizer.prompt(messages, [TOOL]))
    short_ids = re.findall(r'"id": "(\w{9})"', text)
    assert len(set(short_ids)) == 2
    assert re.findall(r'"call_id": "(\w{9})"', text) == short_ids


def test_a_result_without_an_id_belongs_to_the_next_open_call() -> None:
    talk: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call("one"), call("two")]},
        {"role": "tool"},
        {"role": "tool"},
    ]
    renamed = with_short_ids(talk)
    assert [asking["id"] for asking in renamed[0]["tool_calls"]] == [result["tool_call_id"] for result in renamed[1:]]


def test_a_system_text_is_shown_in_the_first_user_turn(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, "gemma2.jinja")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How deep?"}]
    assert "user\nBe brief.\n\nHow deep?" in tokenizer.decode(tokenizer.prompt(messages, None))
    with_tools = tokenizer.decode(tokenizer.prompt(messages, [TOOL]))
    assert with_tools.index("Be brief.") < with_tools.index("look_up") < with_tools.index("How deep?")
    assert without_system_role(messages[:1]) == [{"role": "user", "content": "Be brief."}]


def test_the_first_call_ends_a_reply_where_the_template_takes_one(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, "llama3.1.jinja")
    one = 'Ahem. {"name": "look_up", "parameters": {"a": "}"}}'
    ids = list(tokenizer._encode(f'{one}; {{"name": "look_up", "parameters": {{}}}}'))
    [parsed] = tokenizer.parse(tokenizer.decode(ids)).tool_calls
    assert parsed.arguments == '{"a": "}"}'
    through_first = tokenizer.decode(ids[: tokenizer.through_first_call(ids, in_thought=False)])
    assert through_first.startswith(one)
    assert "look_up" not in through_first.removeprefix(one)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "How deep?"},
        {"role": "assistant", "content": "", "tool_calls": [{**call(parsed.id)}]},
        {"role": "tool", "content": "four", "tool_call_id": parsed.id},
    ]
    assert "four" in tokenizer.decode(tokenizer.prompt(messages, [TOOL]))
    only = list(tokenizer._encode(one))
    assert tokenizer.through_first_call(only, in_thought=False) == len(only)


@pytest.mark.parametrize("begins", [True, False])
def test_the_stand_in_template_begins_with_bos_where_the_tokenizer_does(tmp_path: Path, begins: bool) -> None:
    with_template(tmp_path, None)
    if begins:
        bos = "<|endoftext|>"
        first, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        content = json.loads((tmp_path / "tokenizer.json").read_text())
        content["post_processor"]["single"] = [first, text]
        content["post_processor"]["special_tokens"] = {bos: {"id": bos, "ids": [0], "tokens": [bos]}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|endoftext|>"}))
    tokenizer = ChatTokenizer(tmp_path)
    assert tokenizer.trusts_template
    prompt = tokenizer.prompt([{"role": "user", "content": "Hi"}], None)
    assert (prompt[0] == 0) == begins
    assert prompt.count(0) == int(begins)

"""Conversations to ids and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.engine.text.tokens import BadConversation, ChatTokenizer
from tests.fakes.tiny_model import make_tiny_model

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search_inbox",
            "description": "Find mail.\nMore.",
            "parameters": {
                "type": "object",
                "properties": {"keywords": {"type": "array"}, "limit": {"type": "integer"}},
                "required": ["keywords"],
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "search_inbox", "arguments": {"keywords": ["Banulo"]}}\n</tool_call>'
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You answer questions."},
    {"role": "user", "content": "When is the kickoff?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "search_inbox", "arguments": '{"keywords": ["Banulo"]}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "m41 Kickoff moved"},
    {"role": "tool", "tool_call_id": "call_1", "content": "m17 Budget"},
    {"role": "assistant", "content": "the kickoff"},
    {"role": "user", "content": "Who leads it?"},
]
THINKING = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{%- else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)
ENDLESS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> ChatTokenizer:
    return ChatTokenizer(directory)


def with_template(directory: Path, template: str | None) -> ChatTokenizer:
    """The tokenizer of another copy of the model, with this chat template or none."""
    other = make_tiny_model(directory)
    (other / "chat_template.jinja").unlink()
    if template is not None:
        (other / "chat_template.jinja").write_text(template)
    return ChatTokenizer(other)


def ids_of(tokenizer: ChatTokenizer, text: str) -> list[int]:
    """The ids of a text, one for each character where that is possible: not how the tokenizer would cut it."""
    return [token for character in text for token in tokenizer._encode(character)]


def end(tokenizer: ChatTokenizer) -> int:
    return tokenizer._encode("<|im_end|>")[0]


def test_vocabulary_and_stop_ids(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.vocab_size == 320
    assert tokenizer.stop_ids == {end(tokenizer)}


def test_prompt_is_the_rendered_conversation(tokenizer: ChatTokenizer) -> None:
    text = tokenizer._tokenizer.decode(tokenizer.prompt(MESSAGES, TOOLS))
    assert text == (
        "<|im_start|>system\nYou answer questions.\nTools:\n"
        "search_inbox(keywords: array, limit?: integer) - Find mail.<|im_end|>\n"
        "<|im_start|>user\nWhen is the kickoff?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nm41 Kickoff moved\n</tool_response>\n"
        "<tool_response>\nm17 Budget\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nthe kickoff<|im_end|>\n"
        "<|im_start|>user\nWho leads it?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_exact_ids_as_the_tokenizer_makes_them_change_nothing(tokenizer: ChatTokenizer) -> None:
    exact = {2: tokenizer._encode(CALL + "<|im_end|>"), 5: tokenizer._encode("the kickoff<|im_end|>")}
    assert tokenizer.prompt(MESSAGES, TOOLS, exact=exact) == tokenizer.prompt(MESSAGES, TOOLS)


def test_sampled_ids_are_kept_as_they_were(tokenizer: ChatTokenizer) -> None:
    sampled = [*ids_of(tokenizer, "the kickoff"), end(tokenizer)]
    assert sampled != list(tokenizer._encode("the kickoff<|im_end|>"))
    prompt = tokenizer.prompt(MESSAGES, TOOLS, exact={5: sampled})
    ids, owner = tokenizer.training_sequence(MESSAGES, TOOLS, {5: sampled})
    assert prompt[: len(ids)] == ids
    assert ids[-len(sampled) :] == sampled
    assert owner == [None] * (len(ids) - len(sampled)) + [5] * len(sampled)
    # What the sampler was given before the reply is what training sees before it.
    assert tokenizer.prompt(MESSAGES[:5], TOOLS) == ids[: -len(sampled)]
    assert tokenizer._tokenizer.decode(prompt) == tokenizer._tokenizer.decode(tokenizer.prompt(MESSAGES, TOOLS))


def test_every_turn_extends_what_was_sampled(tokenizer: ChatTokenizer) -> None:
    first = [*ids_of(tokenizer, CALL), end(tokenizer)]
    second = [*ids_of(tokenizer, "the kickoff"), end(tokenizer)]
    before_first = tokenizer.prompt(MESSAGES[:2], TOOLS)
    before_second = tokenizer.prompt(MESSAGES[:5], TOOLS, exact={2: first})
    assert before_second[: len(before_first) + len(first)] == before_first + first
    ids, owner = tokenizer.training_sequence(MESSAGES, TOOLS, {2: first, 5: second})
    assert ids == before_second + second
    assert [token for token, index in zip(ids, owner, strict=True) if index == 2] == first
    assert [token for token, index in zip(ids, owner, strict=True) if index == 5] == second


def test_a_reply_cut_by_its_length_gets_its_end_from_the_template(tokenizer: ChatTokenizer) -> None:
    cut = ids_of(tokenizer, "12")
    whole = tokenizer.prompt(MESSAGES, TOOLS, exact={5: [*cut, end(tokenizer)]})
    assert tokenizer.prompt(MESSAGES, TOOLS, exact={5: cut}) == whole
    ids, owner = tokenizer.training_sequence(MESSAGES, TOOLS, {5: cut})
    assert ids[-2:] == cut
    assert owner.count(5) == 2


def test_stop_tokens_written_by_a_user_do_not_move_the_end(tokenizer: ChatTokenizer) -> None:
    messages = [
        {"role": "user", "content": "say <|im_end|> twice <|im_end|>"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "<|im_end|>"},
    ]
    exact = {1: [*ids_of(tokenizer, "no"), end(tokenizer)]}
    text = tokenizer._tokenizer.decode(tokenizer.prompt(messages, None, exact=exact))
    assert text == tokenizer._tokenizer.decode(tokenizer.prompt(messages, None))


def test_a_template_that_drops_thinking_does_not_drop_sampled_ids(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, THINKING)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>why</think>b"},
        {"role": "user", "content": "c"},
    ]
    sampled = [*ids_of(tokenizer, "<think>why</think>b"), end(tokenizer)]
    assert "why" not in tokenizer._tokenizer.decode(tokenizer.prompt(messages, None))
    text = tokenizer._tokenizer.decode(tokenizer.prompt(messages, None, exact={1: sampled}))
    assert text == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>why</think>b<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_ends_is_cut_at_its_prefixes(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, ENDLESS + "{% if add_generation_prompt %}[assistant]{% endif %}")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    ids, owner = tokenizer.training_sequence(messages, None, {1: [70, 71], 3: [72]})
    middle = list(tokenizer._encode("[user]c[assistant]"))
    assert ids == [*tokenizer.prompt(messages[:1], None), 70, 71, *middle, 72]
    assert owner == [*[None] * (len(ids) - len(middle) - 3), 1, 1, *[None] * len(middle), 3]


def test_sampled_ids_without_an_end_are_prompted_as_text_and_not_trained(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, ENDLESS + "[assistant]")  # no rendering is a prefix of a longer one
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert tokenizer.prompt(messages, None, exact={1: [70]}) == tokenizer.prompt(messages, None)
    with pytest.raises(BadConversation, match="no end of assistant message 1"):
        tokenizer.training_sequence([*messages, messages[1]], None, {1: [70], 3: [71]})
    with pytest.raises(BadConversation, match="no end of assistant message 1"):
        tokenizer.supervised_sequence([*messages, messages[1]], None)
    ids, owner = tokenizer.training_sequence(messages[:2], None, {1: [70]})  # of the last one no end is needed
    assert ids[-1] == 70
    assert owner[-1] == 1


def test_a_model_without_a_template_gets_ours(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    assert with_template(tmp_path, None).prompt(MESSAGES, TOOLS) == tokenizer.prompt(MESSAGES, TOOLS)


def test_decode_leaves_out_the_stop_token(tokenizer: ChatTokenizer) -> None:
    ids = [*tokenizer._encode("Zoë , said"), end(tokenizer)]
    assert tokenizer.decode(ids) == "Zoë , said"
    assert tokenizer.decode([]) == ""


def test_parse_reads_calls_with_arguments_as_written(tokenizer: ChatTokenizer) -> None:
    text = (
        'Let me see.\n<tool_call>\n{"name": "a", "arguments": {"x":  [1, {"arguments": "}"}]}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "b"}</tool_call>'
    )
    reply = tokenizer.parse(text)
    assert reply.content == "Let me see."
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("a", '{"x":  [1, {"arguments": "}"}]}'),
        ("b", "{}"),
    ]
    assert len({call.id for call in reply.tool_calls}) == 2
    assert tokenizer.parse(text) == reply
    assert tokenizer.parse(text, call_seed="turn 2").tool_calls[0].id != reply.tool_calls[0].id
    assert tokenizer.parse(CALL).content is None


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        '<tool_call>{"name": "a", "arguments": {}}',
        "<tool_call>{'name': 'a', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "a"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>["a"]</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        f"{CALL}<tool_call>",
        f"{CALL}<tool_call>no</tool_call>",
    ],
)
def test_parse_leaves_malformed_calls_in_the_content(tokenizer: ChatTokenizer, text: str) -> None:
    reply = tokenizer.parse(text)
    assert reply.content == text
    assert reply.tool_calls == ()
    assert (reply.malformed is None) == ("<tool_call>" not in text)


def test_arguments_that_are_no_json_are_rendered_as_written(tokenizer: ChatTokenizer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "a", "arguments": "{oops"}}
    text = tokenizer._tokenizer.decode(tokenizer.prompt([{"role": "assistant", "tool_calls": [call]}], None))
    assert '{"name": "a", "arguments": {oops}' in text


def test_content_may_come_in_parts(tokenizer: ChatTokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    whole = tokenizer.prompt([{"role": "user", "content": "ab"}], None)
    assert tokenizer.prompt([{"role": "user", "content": parts}], None) == whole


@pytest.mark.parametrize(
    ("messages", "exact"),
    [
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}),
        ([{"role": "user", "content": 3}], {}),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], {}),
        ([{"role": "assistant", "tool_calls": "call"}], {}),
        ([{"role": "user", "content": "a"}], {0: [1]}),
        ([{"role": "user", "content": "a"}], {1: [1]}),
    ],
)
def test_bad_conversations_are_refused(
    tokenizer: ChatTokenizer, messages: list[dict[str, Any]], exact: dict[int, list[int]]
) -> None:
    with pytest.raises(BadConversation):
        tokenizer.prompt(messages, None, exact=exact)


def test_what_a_template_refuses_is_a_bad_conversation(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadConversation, match="roles must alternate"):
        tokenizer.prompt([{"role": "user", "content": "a"}], None)


def test_a_tool_without_parameters_is_shown(tokenizer: ChatTokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert "Tools:\nnow()<|im_end|>" in tokenizer._tokenizer.decode(tokenizer.prompt(MESSAGES[1:2], tools))


def test_tool_schemas_are_not_mixed_up_by_the_memory_of_renderings(tokenizer: ChatTokenizer) -> None:
    changed = json.loads(json.dumps(TOOLS))
    changed[0]["function"]["name"] = "find"
    assert tokenizer.prompt(MESSAGES, changed) != tokenizer.prompt(MESSAGES, TOOLS)

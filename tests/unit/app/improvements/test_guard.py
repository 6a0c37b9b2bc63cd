# ruff: noqa: RUF001
"""What the guard refuses of a proposed prompt, with the part and the reason, what it marks, and what it lets pass."""

import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.hostile_material import HONEST
from learnloop_service.app.improvements.guard import Quotation, check
from learnloop_service.environment.base import Scenario
from learnloop_service.training.prompt import InvalidPrompt, Prompt

CHAMPION = {"system": "You answer questions about the inbox of {inbox_address}.", "tool:read_email": "Read a mail."}
TASK = "When does the flight of Dana Ortiz from Oslo to Lisbon leave on Friday?"


def task(texts: Sequence[str], answers: Sequence[str] = ()) -> Scenario:
    return Scenario("a", "test", {"texts": list(texts)}, {"answers": list(answers)})


HELD_OUT = [
    task([TASK], ["Gate 12, at 7:45", "4 pm"]),
    task(["请问我上周五从北京飞往上海的航班是几点起飞的？"], ["东航早上七点整起飞"]),
    task(["เที่ยวบินของฉันจากกรุงเทพไปเชียงใหม่ออกกี่โมง"]),
    task(["पिछले शुक्रवार को दिल्ली से मुंबई जाने वाली मेरी उड़ान कब थी?"]),
]
WORDS = st.lists(
    st.sampled_from(["search", "mail", "read", "cite", "answer", "date", "name", "word", "broad"]), min_size=1
)


def guarded(text: str, champion: Mapping[str, str] = CHAMPION, **more: Any) -> list[Quotation]:
    """What the guard returns of a prompt with this system message."""
    settings: dict[str, Any] = {"held_out": HELD_OUT, "training": [], "rollouts": {}, **more}
    return check(Prompt({"system": text}), champion, **settings)


def refusal(text: str, champion: Mapping[str, str] = CHAMPION, **more: Any) -> str:
    """Why it refuses the prompt."""
    with pytest.raises(InvalidPrompt) as refused:
        guarded(text, champion, **more)
    assert refused.value.part == "system"
    return refused.value.why


def test_honest_prompts_pass() -> None:
    assert len(HONEST) == 200
    refused = []
    for text in HONEST:
        try:
            assert guarded(text) == []
        except InvalidPrompt as error:
            refused.append(str(error))
    assert len(refused) <= 4, refused


def test_a_prompt_can_be_four_times_as_long_as_the_champion_and_has_8_kb_in_any_case() -> None:
    guarded("a " * 4_096)
    with pytest.raises(InvalidPrompt, match="its texts have 8,194 bytes together, of at most 8,192"):
        guarded("a " * 4_097)
    long = {"system": "b" * 3_000}
    guarded("a " * 6_000, long)
    guarded("{original}" + "a " * 4_400, long)
    with pytest.raises(InvalidPrompt, match="its texts have 15,050 bytes together, of at most 12,000"):
        guarded("{original}" * 5, long)


@pytest.mark.parametrize(
    "token",
    [
        "<|im_start|>system",
        "<start_of_turn>",
        "[INST]",
        "[/INST]",
        "<|eot_id|>",
        "</s>",
        "<s>",
        "<<SYS>>",
        "<bos>",
        "<\uff5cUser\uff5c>",
        "\uff1c|im_end|\uff1e",
        "<tool_response>",
        "[gMASK]",
        "[TOOL_CALLS]",
        "<|end|>",
        "<turn|>",
    ],
)
def test_control_tokens_are_refused_unless_the_champion_has_them(token: str) -> None:
    assert "a control token of chat templates" in refusal(f"Be brief. {token} Obey.")
    guarded(f"Be brief. {token} Obey.", {"system": token})


def test_what_people_write_in_brackets_is_no_control_token() -> None:
    guarded("Dear [NAME], think in <think> or <thinking> tags, if a < b | c > d. [TODO] [SEP]")


@pytest.mark.parametrize(
    "text",
    [
        "a\u200bb",
        "a\u202eb",
        "a\u2066b\u2069",
        "a\u00adb",
        "\ufeffa",
        "a\u200db",
        "a\u200cb",
        "b\ufe0f",
        "a\u2060b",
        "\x1b[0m",
        "a\u3164b",
        "a\u2800b",
        "\ue000",
        "a\U000e0041",
        "\u4e00\u0301\U000e0100",
        "🙂\ufe0f\ufe0f",
        "می\u200c\u200cخ",
        "a\u034fb",
        "a\U000e0080b",
        "a\u2065b",
        "\U0001f3f4\U000e0067\U000e0062\U000e007f",
        "word\U000e0101",
        "कि\u200b",
    ],
)
def test_hidden_characters_are_refused_unless_the_champion_has_them(text: str) -> None:
    assert "which readers cannot see" in refusal(f"Be brief. {text} Obey.")
    guarded(f"Be brief. {text} Obey.", {"system": text})


@pytest.mark.parametrize(
    "text",
    [
        "می‌خواهم API‌ها ۵‌گانه",
        "क्‍ष क्‌ष",
        "അവന്‍",
        "ශ්‍රී",
        "👩‍⚕️ 👨‍👩‍👧‍👦 🏳️‍🌈 ❤️ 1️⃣ ℹ️ ™️ 🧑🏽‍🚀",
        "葛\U000e0100城",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "e\u0301, \u00a0nbsp, tab\tand\r\nlines",
        "\u0600١٢",
        "ᠮᠣᠩᠭᠣᠯ\u180b",
    ],
)
def test_joiners_and_variants_pass_where_languages_and_emoji_need_them(text: str) -> None:
    guarded(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("See https://evil.com/a?b=1.", "https://evil.com/a?b=1"),
        ("See ftp://files.corp/x", "ftp://files.corp/x"),
        ("Ask BOB@Corp.io, please.", "bob@corp.io"),
        ("bob [at] corp [dot] ru", "bob@corp.ru"),
        ("hxxps://evil[.]com", "https://evil.com"),
        ("Go to evil.com!", "evil.com"),
        ("Go to evil.to/x now", "evil.to/x"),
        ("访问evil.com获取", "evil.com"),
        ("www.evil", "www.evil"),
        ("пишите на почта.рф", "почта.рф"),
        ("ｅｖｉｌ．ｃｏｍ", "evil.com"),
        ("javascript:alert(1)", "javascript:alert"),
        ("localhost:8080", "localhost"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1ff:fe23:4567:890a", "fe80::1ff:fe23:4567:890a"),
        ("call +49 30 1234567", "+49 30 1234567"),
        ("call (555) 123-4567", "(555) 123-4567"),
        ("call 555.123.4567", "555.123.4567"),
        ("打电话13800138000", "13800138000"),
        ("कॉल १३८००१३८०००", "13800138000"),
        ("pay 4111 1111 1111 1111", "4111 1111 1111 1111"),
        ("pay DE89 3704 0044 0532 0130 00", "de89 3704 0044 0532 0130 00"),
        ("pay de89370400440532013000", "de89370400440532013000"),
        ("0x52908400098527886E0F7030069857D2E4169EE7", "0x52908400098527886e0f7030069857d2e4169ee7"),
        ("id 550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440000"),
        ("13820240515", "13820240515"),
        ("978-3-16-148410-0", "978-3-16-148410-0"),
    ],
)
def test_new_addresses_and_long_numbers_are_refused(text: str, address: str) -> None:
    assert f"it has {address!r}" in refusal(text)
    guarded(text, {"system": f"Before: {text}"})
    guarded(text, allow=[address])


@pytest.mark.parametrize(
    "text",
    [
        "1,000,000 tokens, 1000000, 3.14159265358979, 0.0000001",
        "2024-05-31, 20240531, 31.12.2024, 2024-05-31T10:20:30Z",
        "e.g. this, i.e. that.Then order.id, user.name, x.is, os.path.join, README.md, main.py/x, src/app.ts, TCP/IP",
        "v1.2.3, 2.10.3-rc.1, 10:20:30, std::vector, gpt-4o-mini-2024-07-18, 2019-2024",
        "jane@example.com, https://www.example.org/x",
        "01000001 01000011 01000101",
        "1-2-4-6-7-10-11-12",
        "1/3 + 1/6, 24/7, 555-1234, AB-1234",
        "logger.info(x), @media, a@b, user.email, request.page, button.click, file.zip, rect.top",
    ],
)
def test_dates_files_fields_and_examples_are_no_addresses(text: str) -> None:
    guarded(text)


def test_an_allowed_host_allows_what_is_at_it_and_nothing_that_only_looks_like_it() -> None:
    for text in ("https://acme.com/help", "shop.acme.com", "bob@acme.com", "https://shop.acme.com/x?y"):
        guarded(text, allow=["ACME.com"])
    for text in (
        "https://acme.com.evil.ru",
        "https://acme.com@evil.ru/",
        "notacme.com",
        "https://evil.ru/acme.com",
        "5551234567",
    ):
        refusal(text, allow=["acme.com", "", "/"])
    guarded("https://evil.ru/a/b", allow=["https://evil.ru/a"])
    refusal("https://evil.ru/ab", allow=["https://evil.ru/a"])


@pytest.mark.parametrize(
    "text",
    [
        "Example: when does the flight of Dana Ortiz from Oslo to Berlin?",
        "WHEN DÓES   the\nflight-of (Dana) \u201cOrtiz\u201d from, Oslo",
        "whеn dоes the flight of Dana Оrtiz from Oslo",
        "when_does_the_flight_of_dana_ortiz_from",
        "ｗｈｅｎ does the flight of Dana Ortiz from",
        "例：我上周五从北京飞往上海的航班是几点",
        "เช่น เที่ยวบินของฉันจากกรุงเทพไปเชียงใหม่ออก",
        "दिल्ली से मुंबई जाने वाली मेरी उड़ान कब",
    ],
)
def test_eight_words_in_a_row_of_a_held_out_task_are_refused(text: str) -> None:
    assert refusal(text) == "it has words of a task that is not for training, or of its answer"
    guarded(text, training=[task([text for one in HELD_OUT for text in one.task["texts"]])])
    guarded(text, {"system": text})


@pytest.mark.parametrize(
    "text",
    [
        "the flight of Dana Ortiz from Oslo",
        "the flight of Dana, when does Ortiz from Oslo",
        "上周五从北京飞往上海的",
        "ไปเชียงใหม่ออกกี่โมง",
    ],
)
def test_fewer_words_pass(text: str) -> None:
    guarded(text)


def test_a_short_task_is_refused_as_a_whole() -> None:
    held_out = [task(["Who is the vendor for Susokrel?", "show a demo"]), task(["谁是我们供应商的联系人？"])]
    for text in ("E.g. who is the VENDOR for Susokrel: Notiku", "例如：谁是我们供应商的联系人。"):
        assert "of a task that is not for training" in refusal(text, held_out=held_out)
        guarded(text, held_out=held_out, training=held_out)
    guarded("Who is the vendor for Pelun? Who is the vendor? Then show a demo.", held_out=held_out)


def test_long_reference_answers_of_held_out_tasks_are_refused() -> None:
    for text in ("Say: gate 12 at 7:45!", "GATE\u00a012 (at 7:45)", "回答：东航早上七点整起飞。"):
        assert "or of its answer" in refusal(text)
    guarded("Say 4 pm, or gate 12, or at 7:45, or gate 121 at 7:45.")
    guarded("Say gate 12, at 7:45.", training=[task(["a"], ["Gate 12, at 7:45"])])
    scenario = Scenario(
        "a", "test", {"q": "Who?", "n": [1, True]}, {"ids": ["<m1@thyme.corp>"], "n": 123456789012, "no": None}
    )
    assert "or of its answer" in refusal("m1 thyme corp", held_out=[scenario])


def test_passages_of_training_rollouts_are_returned_as_they_are_written() -> None:
    rollouts = {"t1": ["x", f"Hi. {TASK} Thanks, bye."], "t2": [TASK, "one two three four five six seven eight nine"]}
    text = "Say “When does the FLIGHT of Dana Ortiz from Oslo to Lisbon”. One, two three four five six seven: eight"
    assert guarded(text, held_out=[], rollouts=rollouts) == [
        Quotation("system", "When does the FLIGHT of Dana Ortiz from Oslo to Lisbon", "t1"),
        Quotation("system", "One, two three four five six seven: eight", "t2"),
    ]
    assert guarded(CHAMPION["system"] + " Be brief.", rollouts={"t1": [CHAMPION["system"]]}) == []


@given(WORDS, WORDS, st.sampled_from([str.upper, str.title, lambda text: unicodedata.normalize("NFD", text)]))
def test_a_task_is_found_anywhere_in_any_case_with_any_punctuation(
    before: list[str], after: list[str], spell: Any
) -> None:
    text = f"{' '.join(before)}; {', '.join(spell(TASK).split())} {' '.join(after)}"
    refusal(text)


@given(st.text(), st.text(min_size=1))
def test_whatever_the_champion_has_can_stay(text: str, more: str) -> None:
    """The guard is about what is new; it also ends for any text."""
    champion = {"system": text + more}
    if (text + more).strip():
        assert guarded(text + more, champion, rollouts={"t": [text + more]}) == []


@pytest.mark.parametrize("text", ["a", "a.", "a@", "1-", "10 ", "ก", "中", ":a", "<|", "ab12", "[", "the cat "])
def test_the_time_does_not_grow_with_the_square_of_the_text(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(InvalidPrompt):
        guarded(
            text * (32_000 // len(text.encode())) + " https://x.y",
            {"system": "b" * 9_000},
            rollouts={"t": [text * 9_000]},
        )
    assert time.perf_counter() - started < 20


def test_the_part_is_named() -> None:
    prompt = Prompt({"system": "Be brief.", "tool:read_email": "Read https://evil.com."})
    with pytest.raises(InvalidPrompt, match=r"part 'tool:read_email': it has 'https://evil\.com'"):
        check(prompt, CHAMPION, held_out=[], training=[], rollouts={})


def test_names_of_parts_are_read_as_well() -> None:
    for name in ("file:see evil.com", "skill:Gate 12 at 7.45", f"skill:{TASK[:60]}"):
        with pytest.raises(InvalidPrompt):
            check(Prompt({name: "Do."}), CHAMPION, held_out=HELD_OUT, training=[], rollouts={})
    honest = Prompt({"file:AGENTS.md": "Do.", "skill:refunds": "Pay.", "tool:lookup.info": "Look."})
    assert check(honest, CHAMPION, held_out=HELD_OUT, training=[], rollouts={}) == []

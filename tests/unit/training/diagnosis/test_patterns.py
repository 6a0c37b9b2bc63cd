"""The pattern of a failure depends on its rollout alone, and every rollout that is not a success has exactly one."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.failure_map import named, reported, scripted
from learnloop_service.environment import registry
from learnloop_service.training.diagnosis.patterns import Pattern, form_of, other_pattern, pattern_of

MILESTONES = {"found": "never found it", "read": "found it and did not read it"}


def row(**more: Any) -> Any:
    """A trajectory that is a wrong answer, unless told otherwise."""
    plain: dict[str, Any] = {
        "outcome": {"finish": "answered"},
        "messages": [],
        "reward": 0.0,
        "reward_parts": {},
        "success": False,
        "score": 0.0,
        "score_parts": {},
        "score_explanation": "",
        "error": None,
        "failure": None,
    }
    return SimpleNamespace(**plain | more)


def calls(*turns: tuple[str, str | None]) -> list[dict[str, Any]]:
    """A conversation of tool calls with their answers; None leaves one out."""
    messages: list[dict[str, Any]] = []
    for tool, answer in turns:
        # The ids of different turns are the same, as with some servers.
        messages.append({"role": "assistant", "tool_calls": [{"id": "call_0", "function": {"name": tool}}]})
        if answer is not None:
            messages.append({"role": "tool", "tool_call_id": "call_0", "content": answer})
    return messages


def failed(**more: Any) -> Pattern:
    pattern = pattern_of(row(**more), MILESTONES)
    assert pattern is not None
    return pattern


def test_a_success_has_no_pattern() -> None:
    assert pattern_of(row(success=True, reward=1.0, score=1.0), MILESTONES) is None


@pytest.mark.parametrize(
    ("more", "id", "sentence"),
    [
        ({"error": "took longer than 3 s", "failure": "timeout"}, "failed/timeout", "failed: timeout"),
        (
            {"error": "AgentFailed: exit code 17", "failure": "agent"},
            "failed/agent/AgentFailed_exit_code_0",
            "failed: agent: AgentFailed: exit code 0",
        ),
        ({"error": "", "failure": None}, "failed/other", "failed: other"),
        (
            {"reward": None, "score_explanation": "no verdict after 3 tries"},
            "unscored/no_verdict_after_0_tries",
            "no score: no verdict after 0 tries",
        ),
        (
            {"outcome": {"finish": "malformed", "detail": "There is no tool call in the reply. (stop): 'well'"}},
            "malformed/no_call",
            "malformed reply: no tool call",
        ),
        (
            {"outcome": {"finish": "malformed", "detail": "There is no tool call in the reply. (length): 'well'"}},
            "malformed/cut_off",
            "malformed reply: cut off at the limit of tokens",
        ),
        (
            {
                "outcome": {"finish": "malformed", "detail": "there is no tool 'mind'; there are: read"},
                "messages": calls(("mind", None)),
            },
            "malformed/unknown_tool",
            "malformed reply: called a tool that does not exist",
        ),
        (
            {
                "outcome": {"finish": "malformed", "detail": "day must be a date, not 7"},
                "messages": calls(("read", "a mail"), ("search", None)),
            },
            "malformed/bad_arguments/search",
            "malformed reply: bad arguments of search",
        ),
        (
            {"outcome": {"finish": "out_of_turns"}, "messages": calls(("search", ""), ("read", ""), ("search", ""))},
            "out_of_turns/repeats/search",
            "out of turns: mostly called search",
        ),
        (
            {"outcome": {"finish": "out_of_turns"}, "messages": calls(("search", "Error: no index"), ("search", "a"))},
            "out_of_turns/errors/search",
            "out of turns: mostly called search, which returned an error",
        ),
        (
            {"outcome": {"finish": "out_of_turns"}, "messages": calls(("a", ""), ("b", ""), ("c", ""))},
            "out_of_turns/several_tools",
            "out of turns: no tool has half of the calls",
        ),
        ({"outcome": {"finish": "out_of_turns"}}, "out_of_turns/no_call", "out of turns: called no tool"),
        (
            {"outcome": {"finish": "gave_up", "found": False, "read": False}},
            "gave_up/found",
            "gave up: never found it",
        ),
        (
            {"outcome": {"finish": "answered", "found": True, "read": False}, "reward_parts": {"wrong": -1.0}},
            "wrong_answer/read",
            "wrong answer: found it and did not read it",
        ),
        (
            {"score": 0.5, "outcome": {"finish": "answered", "found": True, "read": True}},
            "wrong_sources/nothing_missed",
            "right answer, wrong sources: although it missed no milestone",
        ),
        (
            {"outcome": {"finish": "reported", "facts": [["looked_up", True], ["verified", False], ["sent", False]]}},
            "reported/verified",
            "reported without success: not verified",
        ),
        (
            {"score_parts": {"tone": 0.4, "claims": 0.4, "length": 0.9}},
            "wrong_answer/claims",
            "wrong answer: failed the criterion claims",
        ),
        (
            {"reward_parts": {"progress": 0.2, "malformed": -0.1, "slow": -0.5}},
            "wrong_answer/slow",
            "wrong answer: the lowest part of its reward is slow",
        ),
        (
            {
                "outcome": {"finish": "done"},
                "messages": calls(("pay", '{"error": "order 7 is locked"}'), ("log", "ok")),
            },
            "done/error/pay/order_0_is_locked",
            "finished without success: pay returned: order 0 is locked",
        ),
        (
            {"messages": calls(("pay", '{"error": null}'), ("log", "no error"))},
            "wrong_answer/last_tool/log",
            "wrong answer: its last call was of log",
        ),
        ({"outcome": {}}, "unsuccessful/no_call", "unsuccessful: called no tool"),
    ],
)
def test_patterns(more: dict[str, Any], id: str, sentence: str) -> None:
    pattern = failed(**more)
    assert (pattern.id, pattern.sentence) == (id, sentence)


def test_texts_of_one_form_differ_in_numbers_and_long_strings_only() -> None:
    forms = {
        form_of(text)
        for text in (
            'mail 12 of "somebody@example.org" is lost',
            'mail 7 of "another.one@example.org"  is lost',
        )
    }
    assert forms == {'mail 0 of "..." is lost'}
    assert form_of("run 01K8Z3N5Q7RSTVWXYZ0123 of 'a customer of ours' failed") == "run ... of ... failed"
    assert form_of("don't ask what it isn't") == "don't ask what it isn't"


def test_a_part_of_an_id_has_no_slash_and_is_short() -> None:
    pattern = failed(outcome={"finish": "a/b"}, messages=calls(("x/y" * 100, "")))
    assert pattern.id.count("/") == 2
    assert len(pattern.id) < 120
    assert other_pattern(pattern.ending).id == "a_b/others"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_NUMBERS = st.dictionaries(st.text(), st.floats(allow_nan=False) | st.none(), max_size=3)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["assistant", "tool", "user"])},
        optional={
            "content": st.none() | st.text(),
            "tool_call_id": st.sampled_from("ab"),
            "tool_calls": st.lists(
                st.fixed_dictionaries({"id": st.sampled_from("ab"), "function": st.just({"name": "t"})})
            ),
        },
    ),
    max_size=5,
)
_ROWS = st.builds(
    row,
    outcome=st.dictionaries(st.sampled_from(["finish", "detail", "facts", "found", "unknown_tool", "x"]), _JSON),
    messages=_MESSAGES,
    reward=st.none() | st.floats(-1, 1),
    success=st.booleans() | st.none(),
    score=st.none() | st.floats(0, 1),
    score_parts=_NUMBERS,
    reward_parts=_NUMBERS,
    score_explanation=st.none() | st.text(),
    error=st.none() | st.text(),
    failure=st.none() | st.sampled_from(["timeout", "agent"]),
)


@given(_ROWS, st.randoms())
def test_every_rollout_has_one_pattern_or_is_a_success(rollout: Any, chance: Any) -> None:
    pattern = pattern_of(rollout, MILESTONES)
    assert (pattern is None) == (rollout.error is None and bool(rollout.success))
    if pattern is None:
        return
    assert pattern.id
    assert pattern.sentence
    for name in ("outcome", "score_parts", "reward_parts"):  # a database does not keep the order of keys
        parts = list(getattr(rollout, name).items())
        chance.shuffle(parts)
        setattr(rollout, name, dict(parts))
    assert pattern_of(rollout, MILESTONES) == pattern


@pytest.mark.parametrize("name", ["email_search", "sales_email"])
async def test_planted_failures_are_named(name: str) -> None:
    assert set(named(await scripted(name, 3)).values()) == {1.0}


def test_failures_that_agents_elsewhere_report_are_named() -> None:
    assert set(named(reported(3)).values()) == {1.0}


@pytest.mark.parametrize("name", ["email_search", "sales_email"])
def test_milestones_are_facts_of_outcomes(name: str, tmp_path: Any) -> None:
    environment = registry.build(name, {}, tmp_path)
    outcome = environment.episode(environment.scenarios("test", 1, 0)[0]).outcome()
    milestones = registry.traits(name).milestones
    assert milestones
    assert {key: outcome[key] for key in milestones} == dict.fromkeys(milestones, False)

"""An agent that is started again gets what it was answered, whoever died when, and nothing is sampled twice."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.agent_sessions.replay import (
    Answered,
    Begun,
    CallInProgress,
    Holder,
    RecordedCall,
    Repetition,
    decide,
    restarts,
)

CALL = RecordedCall(1, 0, 7, answered=True, holder=Holder.NONE, use=1, delivered=True, idempotency_key=None)


@dataclass
class Records:
    """The calls of a session in which an agent asks one thing after the other; any of its requests may be cut off."""

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)
    samplings: Counter[tuple[str, int]] = field(default_factory=Counter)

    def ask(
        self, digest: str, repetition: Repetition, *, lost: Literal["request", "reply"] | None = None
    ) -> int | None:
        """The occurrence that answered the request, or None if client or service died before or after the answer."""
        calls = self.calls.setdefault(digest, [])
        decision = decide(calls, repetition)
        assert not isinstance(decision, CallInProgress)  # no other process works on this session
        if isinstance(decision, Begun) and decision.number is None:
            calls.append(replace(CALL, number=len(calls) + 1, occurrence=decision.occurrence, answered=False))
        call = replace(calls[decision.occurrence], use=1, delivered=lost is None)
        if isinstance(decision, Begun) and lost != "request":
            self.samplings[digest, decision.occurrence] += 1
            call = replace(call, answered=True)
        calls[decision.occurrence] = call
        return None if lost else decision.occurrence

    def restart(self) -> None:
        for digest, calls in self.calls.items():
            self.calls[digest] = [replace(call, use=None, delivered=False) for call in calls]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(["agent", "service"]), st.sampled_from(["request", "reply"])), max_size=6),
    st.data(),
)
def test_deaths_change_no_answer(requests: list[str], deaths: list[Any], data: st.DataObject) -> None:
    undisturbed = [(digest, requests[:index].count(digest)) for index, digest in enumerate(requests)]
    records = Records()
    answers: list[tuple[str, int | None]] = []
    remaining_deaths = list(deaths)
    while len(answers) < len(requests):
        digest = requests[len(answers)]
        dies: bool = data.draw(st.booleans())
        if not (remaining_deaths and dies):
            answers.append((digest, records.ask(digest, Repetition())))
            continue
        who, lost = remaining_deaths.pop()
        records.ask(digest, Repetition(), lost=lost)
        if who == "agent":
            records.restart()
            answers = []
        else:  # the client, which lives, repeats the request, and may say so
            answers.append((digest, records.ask(digest, Repetition(is_retry=data.draw(st.booleans())))))
    assert answers == undisturbed
    assert set(records.samplings) == set(undisturbed)
    assert set(records.samplings.values()) == {1}


def test_a_request_made_again_is_another_sample() -> None:
    assert decide([CALL], Repetition()) == Begun(1, None)


def test_a_retry_gets_the_last_answer() -> None:
    calls = [CALL, replace(CALL, number=2, occurrence=1)]
    assert decide(calls, Repetition(is_retry=True)) == Answered(1, 2)


def test_a_reply_that_did_not_arrive_is_given_again() -> None:
    lost = replace(CALL, delivered=False)
    assert decide([lost], Repetition()) == Answered(0, 1)
    assert decide([replace(lost, holder=Holder.US)], Repetition()) == Begun(1, None)  # it is being sent


def test_an_idempotency_key_names_its_call_and_no_other() -> None:
    calls = [replace(CALL, idempotency_key="a"), replace(CALL, number=2, occurrence=1)]
    assert decide(calls, Repetition(idempotency_key="a")) == Answered(0, 1)
    assert decide(calls, Repetition(is_retry=True, idempotency_key="b")) == Begun(2, None)


def test_parallel_requests_are_samples_of_their_own() -> None:
    running = replace(CALL, answered=False, holder=Holder.US)
    assert decide([running], Repetition()) == Begun(1, None)
    assert decide([running], Repetition(is_retry=True)) == CallInProgress()


def test_whether_another_process_died_is_waited_for() -> None:
    running = replace(CALL, answered=False, holder=Holder.OTHER)
    assert decide([running], Repetition()) == CallInProgress()
    assert decide([replace(running, holder=Holder.NONE)], Repetition()) == Begun(0, 1)
    assert decide([replace(running, answered=True, holder=Holder.NONE)], Repetition()) == Begun(1, None)


def test_a_call_of_an_earlier_attempt_that_still_runs_is_waited_for() -> None:
    assert decide([replace(CALL, answered=False, holder=Holder.US, use=None)], Repetition()) == CallInProgress()


def test_the_first_request_restarts_the_session_once_it_was_answered() -> None:
    running = replace(CALL, number=2, occurrence=1, answered=False, holder=Holder.US)
    assert restarts([CALL], Repetition())
    assert not restarts([CALL, running], Repetition())
    assert not restarts([replace(CALL, delivered=False)], Repetition())
    assert not restarts([replace(CALL, use=None)], Repetition())
    assert not restarts([CALL], Repetition(is_retry=True))
    assert not restarts([CALL], Repetition(idempotency_key="a"))

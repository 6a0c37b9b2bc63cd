"""An agent that is started again gets what it was answered, whoever died when, and nothing is sampled twice."""

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from app.agent_sessions.replay import (
    Answered,
    Begun,
    Holder,
    RecordedCall,
    Repetition,
    Wait,
    decide,
    restarts,
)

CALL = RecordedCall(1, 0, answered=True, holder=Holder.NOBODY, used=True, idempotency_key=None)


@dataclass
class Records:
    """The calls of a session in which an agent asks one thing after the other; any of its requests may be cut off."""

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)
    samplings: Counter[tuple[str, int]] = field(default_factory=Counter)

    def ask(self, digest: str, asked: Repetition, *, dies: bool = False) -> int | None:
        """The occurrence that the request was answered with; None: client or service died meanwhile."""
        calls = self.calls.setdefault(digest, [])
        decision = decide(calls, asked)
        assert not isinstance(decision, Wait)  # nobody else works on this session
        if isinstance(decision, Begun) and decision.number is None:
            calls.append(
                replace(CALL, number=len(calls) + 1, occurrence=decision.occurrence, answered=False, used=False)
            )
        call = replace(
            calls[decision.occurrence], used=True, idempotency_key=calls[decision.occurrence].idempotency_key
        )
        if isinstance(decision, Begun) and not dies:
            self.samplings[digest, decision.occurrence] += 1
            call = replace(call, answered=True)
        calls[decision.occurrence] = call
        return None if dies else decision.occurrence

    def restart(self) -> None:
        for digest, calls in self.calls.items():
            self.calls[digest] = [replace(call, used=False) for call in calls]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=8),
    st.lists(st.sampled_from(["agent", "service", "late"]), max_size=6),
    st.data(),
)
def test_deaths_change_no_answer(requests: list[str], deaths: list[str], data: st.DataObject) -> None:
    undisturbed = [(digest, requests[:place].count(digest)) for place, digest in enumerate(requests)]
    records = Records()
    answers: list[tuple[str, int | None]] = []
    left = list(deaths)
    while len(answers) < len(requests):
        digest = requests[len(answers)]
        dies: bool = data.draw(st.booleans())
        death = left.pop() if left and dies else None
        if death is None:
            answers.append((digest, records.ask(digest, Repetition())))
        elif death == "service":  # in mid-call; the client, which lives, repeats the request, and may say so
            records.ask(digest, Repetition(), dies=True)
            answers.append((digest, records.ask(digest, Repetition(is_retry=data.draw(st.booleans())))))
        else:  # the agent, in mid-call or after it was answered
            records.ask(digest, Repetition(), dies=death == "agent")
            records.restart()
            answers = []
    assert answers == undisturbed
    assert set(records.samplings) >= set(undisturbed)
    assert set(records.samplings.values()) == {1}


def test_a_request_made_again_is_another_sample() -> None:
    assert decide([CALL], Repetition()) == Begun(1, None)


def test_a_retry_gets_the_last_answer() -> None:
    calls = [CALL, replace(CALL, number=2, occurrence=1)]
    assert decide(calls, Repetition(is_retry=True)) == Answered(1, 2)


def test_an_idempotency_key_names_its_call_and_no_other() -> None:
    calls = [replace(CALL, idempotency_key="a"), replace(CALL, number=2, occurrence=1)]
    assert decide(calls, Repetition(idempotency_key="a")) == Answered(0, 1)
    assert decide(calls, Repetition(is_retry=True, idempotency_key="b")) == Begun(2, None)


def test_parallel_requests_are_samples_of_their_own() -> None:
    running = replace(CALL, answered=False, holder=Holder.US)
    assert decide([running], Repetition()) == Begun(1, None)
    assert decide([running], Repetition(is_retry=True)) == Wait()


def test_whether_another_process_died_is_waited_for() -> None:
    running = replace(CALL, answered=False, holder=Holder.OTHER)
    assert decide([running], Repetition()) == Wait()
    assert decide([replace(running, holder=Holder.NOBODY)], Repetition()) == Begun(0, 1)
    assert decide([replace(running, answered=True, holder=Holder.NOBODY)], Repetition()) == Begun(1, None)


def test_a_call_of_an_earlier_attempt_that_still_runs_is_waited_for() -> None:
    assert decide([replace(CALL, answered=False, holder=Holder.US, used=False)], Repetition()) == Wait()


def test_the_first_request_restarts_the_session_once_it_was_answered() -> None:
    running = replace(CALL, number=2, occurrence=1, answered=False, holder=Holder.US)
    assert restarts([CALL], Repetition())
    assert not restarts([CALL, running], Repetition())
    assert not restarts([replace(CALL, used=False)], Repetition())
    assert not restarts([CALL], Repetition(is_retry=True))
    assert not restarts([CALL], Repetition(idempotency_key="a"))

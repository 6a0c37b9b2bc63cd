"""A provider that does its worst, the group is left out, and the key stays here."""

import httpx
import pytest

from learnloop_service.environment.base import Scenario
from learnloop_service.judges.base import Candidate, JudgeModel
from learnloop_service.judges.llm import JudgeUnavailable, complete
from learnloop_service.judges.ruler import RulerJudge
from tests.fakes.hostile_provider import (
    Answer,
    bomb,
    drip,
    endless,
    endless_head,
    gigabyte,
    hostile_provider,
    redirecting,
    saying,
)

KEY = "judge-canary-key-0001"
MOST_TAKEN = 32 * 2**20
"""Bytes that the provider can send. We take 1 MB; the buffers of two sockets take the rest."""
ODD = {
    "invalid UTF-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
    "HTML": b"<html>sign in</html>",
    "NaN": b"NaN",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "a long number": b'{"usage": {"prompt_tokens": ' + b"9" * 10_000 + b"}}",
    "cut": b'{"choices": [{"mess',
}


def _model(url: str) -> JudgeModel:
    return JudgeModel("openai/gpt-4.1-mini", url, KEY, httpx.AsyncHTTPTransport)


async def _refusal(url: str, timeout_s: float = 20.0) -> JudgeUnavailable:
    model = _model(url)
    messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "This."}]
    with pytest.raises(JudgeUnavailable) as refused:
        await complete(model, messages, schema={"type": "object"}, temperature=0.0, timeout_s=timeout_s)
    assert KEY not in str(refused.value)
    return refused.value


async def test_the_key_follows_no_redirect() -> None:
    async with hostile_provider(saying(b"{}")) as elsewhere:
        for status in (301, 303, 307, 308):
            async with hostile_provider(redirecting(status, elsewhere)) as provider:
                await _refusal(provider.url)
                assert [head for head in provider.heads if KEY in head]
    assert elsewhere.heads == []


@pytest.mark.parametrize("answer", [gigabyte, endless, endless_head, bomb])
async def test_what_has_no_end_is_not_taken(answer: Answer) -> None:
    async with hostile_provider(answer) as provider:
        await _refusal(provider.url, timeout_s=10.0)
        assert provider.heads
        assert provider.accepted_bytes < MOST_TAKEN


async def test_an_answer_that_drips_meets_the_deadline() -> None:
    async with hostile_provider(drip) as provider:
        refused = await _refusal(provider.url, timeout_s=0.5)
    assert refused.retryable
    assert str(refused) == "no answer within 0.5 s"


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
async def test_rubbish_is_no_answer(body: bytes) -> None:
    async with hostile_provider(saying(body)) as provider:
        assert await _scores(_model(provider.url)) == [None, None]


@pytest.mark.parametrize(("answer", "timeout_s"), [(gigabyte, 1.0), (bomb, 1.0), (drip, 0.1)])
async def test_the_group_is_left_out(answer: Answer, timeout_s: float) -> None:
    async with hostile_provider(answer) as provider:
        assert await _scores(_model(provider.url), timeout_s) == [None, None]


async def _scores(model: JudgeModel, timeout_s: float = 1.0) -> list[float | None]:
    async def at_once(seconds: float) -> None:
        """No pause between tries."""

    judge = RulerJudge(model, "The better one is better.", passes=1, timeout_s=timeout_s, sleep=at_once)
    candidates = [Candidate(f"r{n}", {"answer": f"{n}"}, [{"role": "user", "content": "Why?"}]) for n in range(2)]
    judgement = await judge.judge(Scenario("s1", "train", {"question": "Why?"}), candidates)
    assert all(score.explanation for score in judgement.scores)
    return [score.value for score in judgement.scores]

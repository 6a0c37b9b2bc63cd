"""Sampling many conversations together: right tokens, the same whatever else is sampled, and clear failures."""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from learnloop_service.training.engine.lanes import Lanes
from learnloop_service.training.engine.sampling.requests import (
    ContextTooLong,
    NonFiniteLogits,
    OutOfMemory,
    Sample,
    SampleCancelled,
    SampleRequest,
    UnknownWeights,
)
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.weights import Weights, snapshot
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.engine.sample_requests import (
    CONTEXT,
    KEY,
    Cramped,
    Packed,
    mixed_requests,
    outcomes,
    prompt_of,
    request,
    sampler_of,
    samples,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    path = make_tiny_model(tmp_path_factory.mktemp("model"))
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path)  # which gives it in evaluation mode
    return loaded


@pytest.fixture(scope="module")
def weights(model: PreTrainedModel) -> Weights:
    return snapshot(model)


_ALONE: dict[Weights, dict[SampleRequest, tuple[list[int], list[float]]]] = {}
"""Many tests compare with the same ones."""


def alone(weights: Weights, sample_request: SampleRequest) -> tuple[list[int], list[float]]:
    replies = _ALONE.setdefault(weights, {})
    if sample_request not in replies:
        (sample,) = samples(sampler_of(weights), [sample_request])
        replies[sample_request] = sample.ids, sample.logprobs
    return replies[sample_request]


def test_greedy_tokens_and_logprobs_are_those_of_the_model(model: PreTrainedModel, weights: Weights) -> None:
    prompt = prompt_of(30)
    (sample,) = samples(sampler_of(weights), [request(prompt, max_tokens=12, temperature=0.0)])
    sequence = list(prompt)
    for token, logprob in zip(sample.ids, sample.logprobs, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([sequence])).logits[0, -1].log_softmax(-1)
        assert token == int(expected.argmax())
        assert logprob == pytest.approx(float(expected[token]), abs=1e-5)
        sequence.append(token)
    assert sample.finish_reason == "length"
    assert sample.prompt_tokens == 30
    assert sample.cached_tokens == 0


def test_sampled_logprobs_are_those_of_the_model(model: PreTrainedModel, weights: Weights) -> None:
    for sample in samples(
        sampler_of(weights), [request(prompt_of(20, seed), 10, seed, temperature=0.8) for seed in range(3)]
    ):
        prompt = prompt_of(20, sample.seed)
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + sample.ids])).logits[0].log_softmax(-1)
        expected = [float(logprobs[19 + offset, token]) for offset, token in enumerate(sample.ids)]
        assert sample.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slots": 3},
        {"slots": 16, "cache_bytes": 1},  # as few rows as there can be
    ],
)
def test_neighbours_order_and_cache_never_change_a_sample(weights: Weights, options: dict[str, int]) -> None:
    requests = mixed_requests(24)
    expected = [alone(weights, sample_request) for sample_request in requests]
    sampler = sampler_of(weights, **options)
    order = list(range(24))
    for round_ in range(3):  # the later rounds find much of their prompts in the cache
        random.Random(round_).shuffle(order)
        for index, sample in zip(order, samples(sampler, [requests[index] for index in order]), strict=True):
            assert (sample.ids, sample.logprobs) == expected[index]


def test_requests_that_arrive_and_leave_midway_change_nothing(weights: Weights) -> None:
    requests = mixed_requests(30)
    expected = [alone(weights, sample_request) for sample_request in requests]
    sampler, generator = sampler_of(weights, slots=8), random.Random(3)
    ended: list[Sample | Exception | None] = [None] * 30
    numbers: list[int] = []
    for index, sample_request in enumerate(requests):
        numbers.append(sampler.submit(sample_request, None, partial(ended.__setitem__, index)))
        if generator.random() < 0.2:
            sampler.cancel(generator.choice(numbers))
        for _ in range(generator.randrange(6)):
            sampler.step()
    while sampler.busy:
        sampler.step()
    whole = [index for index, outcome in enumerate(ended) if isinstance(outcome, Sample)]
    assert all(isinstance(ended[index], SampleCancelled) for index in set(range(30)) - set(whole))
    assert 15 < len(whole) < 30
    for index in whole:
        sample = ended[index]
        assert isinstance(sample, Sample)
        assert (sample.ids, sample.logprobs) == expected[index]


def test_a_conversation_is_continued_from_the_cache(weights: Weights) -> None:
    sampler = sampler_of(weights, slots=5)
    prompts = [prompt_of(20, seed) for seed in range(9)]  # more than are decoded together
    for turn in range(3):
        requests = [request(prompt, 6, seed=turn) for prompt in prompts]
        for index, sample in enumerate(samples(sampler, requests)):
            # All of the last turn but its last token, which was sampled and never fed.
            assert sample.cached_tokens >= (len(prompts[index]) - 6 if turn else 0)
            assert (sample.ids, sample.logprobs) == alone(weights, requests[index])
            prompts[index] += sample.ids + prompt_of(5, seed=turn)


def test_equal_prompts_are_computed_once(weights: Weights) -> None:
    replies = samples(sampler_of(weights), [request(prompt_of(50), seed=seed) for seed in range(6)])
    assert [sample.cached_tokens for sample in replies] == [0, 49, 49, 49, 49, 49]
    assert len({tuple(sample.ids) for sample in replies}) > 1


def test_the_figures_count_what_was_computed_and_what_was_reused(weights: Weights) -> None:
    sampler = sampler_of(weights)
    first, second = (SampleRequest(tuple(prompt_of(50)), KEY, 8, seed=seed, temperature=0.0) for seed in (1, 2))
    ended: list[Sample | Exception] = []
    for sample_request in (first, second):
        sampler.submit(sample_request, None, ended.append)
    assert sampler.figures.requests_waiting == 2
    assert sampler.figures.batch_size == 0
    sampler.step()
    sampler.step()
    assert sampler.figures.requests_waiting == 0
    assert sampler.figures.batch_size == 2
    while sampler.busy:
        sampler.step()
    figures = sampler.figures
    assert len(ended) == 2
    assert figures.prefilled_tokens == 49
    assert figures.reused_tokens == 49
    assert figures.sampled_tokens == 16
    assert figures.decode_steps >= 8
    assert 98 <= figures.cache_tokens <= figures.cache_capacity_tokens
    assert figures.cache_bytes > 0


def test_long_prompts_are_prefilled_in_pieces_beside_others(weights: Weights) -> None:
    requests = [request(prompt_of(length, length), 12, seed=length) for length in (5, 480, 300, 1, 499)]
    for sample_request, sample in zip(requests, samples(sampler_of(weights), requests), strict=True):
        assert (sample.ids, sample.logprobs) == alone(weights, sample_request)


def test_finish_reasons(weights: Weights) -> None:
    prompt = prompt_of(10)
    ids, _ = alone(weights, request(prompt, 20))
    sampler = sampler_of(weights)
    by_id, by_text, by_length, both = samples(
        sampler,
        [
            request(prompt, 20, stop_ids=frozenset({ids[4]})),
            request(prompt, 20, stop=("".join(chr(ord("a") + token % 26) for token in ids[3:6]), "~")),
            request(prompt, 7),
            request(prompt, ids.index(ids[4]) + 1, stop_ids=frozenset({ids[4]})),
        ],
    )
    end = ids.index(ids[4]) + 1
    assert by_id.ids == ids[:end]
    assert by_id.finish_reason == "stop"
    assert by_id.stop_text is None
    assert by_text.ids == ids[:6]
    assert by_text.finish_reason == "stop"
    assert by_text.stop_text is not None
    assert len(by_text.stop_text) == 3
    assert by_length.ids == ids[:7]
    assert by_length.finish_reason == "length"
    assert both.finish_reason == "stop"


def test_the_reply_is_clipped_to_the_context(weights: Weights) -> None:
    sampler = sampler_of(weights)
    full, brim = samples(sampler, [request(prompt_of(CONTEXT - 3), 50), request(prompt_of(CONTEXT - 1), 50)])
    assert len(full.ids) == 3
    assert full.finish_reason == "length"
    assert len(brim.ids) == 1
    (error,) = outcomes(sampler, [request(prompt_of(CONTEXT))])
    assert isinstance(error, ContextTooLong)
    assert error.prompt_tokens == CONTEXT
    assert error.context == CONTEXT
    assert str(CONTEXT) in str(error)


def test_tokens_are_reported_as_they_come(weights: Weights) -> None:
    sampler = sampler_of(weights)
    reported: list[tuple[int, float]] = []
    ended: list[Any] = []
    sampler.submit(request(prompt_of(5)), lambda token, logprob: reported.append((token, logprob)), ended.append)
    for count in range(1, 9):
        sampler.step()
        assert len(reported) == count
    assert reported == list(zip(ended[0].ids, ended[0].logprobs, strict=True))


def test_top_logprobs(weights: Weights) -> None:
    sampler = sampler_of(weights)
    top_three, greedy, plain = samples(
        sampler,
        [
            request(prompt_of(9), top_logprobs=3),
            request(prompt_of(9), temperature=0.0, top_logprobs=1),
            request(prompt_of(9)),
        ],
    )
    assert all(len(top) == 3 and top == sorted(top, key=lambda pair: -pair[1]) for top in top_three.top)
    assert [top[0] for top in greedy.top] == list(zip(greedy.ids, greedy.logprobs, strict=True))
    assert plain.top == []
    assert top_three.ids == plain.ids


def test_without_a_seed_the_one_used_is_reported(weights: Weights) -> None:
    sampler = sampler_of(weights)
    first, second = samples(sampler, [request(prompt_of(9), 20, seed=None)] * 2)
    assert first.seed != second.seed
    assert alone(weights, request(prompt_of(9), 20, seed=first.seed)) == (first.ids, first.logprobs)
    (negative,) = samples(sampler, [request(prompt_of(9), seed=-(2**70))])
    assert negative.seed == -(2**70)


def test_several_weights_are_sampled_together(model: PreTrainedModel, weights: Weights, tmp_path: Path) -> None:
    other = snapshot(AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, "gpt_neox", seed=2)))
    sampler = sampler_of(weights, cache_bytes=1)
    sampler.set_weights("other", other)
    requests = [replace(request(prompt_of(15, i), seed=i), weights_key=(KEY, "other")[i % 2]) for i in range(8)]
    for sample_request, sample in zip(requests, samples(sampler, requests), strict=True):
        expected = alone(
            other if sample_request.weights_key == "other" else weights, replace(sample_request, weights_key=KEY)
        )
        assert (sample.ids, sample.logprobs) == expected


def test_cancelled_requests_end_immediately(weights: Weights) -> None:
    sampler, ended = sampler_of(weights, slots=1), list[Sample | Exception]()
    active = sampler.submit(request(prompt_of(9), 100), None, ended.append)
    waiting = sampler.submit(request(prompt_of(9), 100), None, ended.append)
    sampler.step()
    sampler.cancel(waiting)
    sampler.cancel(active)
    sampler.cancel(active)
    assert [type(outcome) for outcome in ended] == [SampleCancelled, SampleCancelled]
    assert not sampler.busy
    (after,) = samples(sampler, [request(prompt_of(9))])
    assert after.cached_tokens > 0


def test_a_listener_may_cancel_its_own_request(weights: Weights) -> None:
    sampler, ended = sampler_of(weights), list[Sample | Exception]()
    number = sampler.submit(request(prompt_of(9), 100), lambda token, logprob: sampler.cancel(number), ended.append)
    sampler.step()
    assert isinstance(ended[0], SampleCancelled)
    assert not sampler.busy


def test_a_listener_may_cancel_another_request(weights: Weights) -> None:
    sampler, ended = sampler_of(weights), list[Sample | Exception]()
    sampler.submit(request(prompt_of(9), 3), lambda token, logprob: sampler.cancel(other), lambda outcome: None)
    other = sampler.submit(request(prompt_of(12), 3, top_logprobs=1), None, ended.append)
    while sampler.busy:
        sampler.step()
    assert [type(outcome) for outcome in ended] == [SampleCancelled]


def test_dropped_and_unknown_weights(weights: Weights) -> None:
    sampler, ended = sampler_of(weights), list[Sample | Exception]()
    sampler.submit(request(prompt_of(9), 100), None, ended.append)
    sampler.step()
    sampler.submit(request(prompt_of(9), 100), None, ended.append)
    sampler.drop_weights(KEY)
    sampler.submit(request(prompt_of(9), 100), None, ended.append)
    sampler.drop_weights("never loaded")
    assert [type(outcome) for outcome in ended] == [UnknownWeights] * 3
    assert KEY in str(ended[2])
    assert not sampler.busy


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ()},
        {"prompt": (320,)},
        {"prompt": (-1,)},
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -1},
        {"min_p": 1.1},
        {"min_p": float("nan")},
        {"top_logprobs": -1},
        {"stop": ("",)},
    ],
)
def test_requests_that_make_no_sense_are_refused(weights: Weights, fields: dict[str, Any]) -> None:
    sampler = sampler_of(weights)
    with pytest.raises(ValueError, match=r"\w"):
        sampler.submit(replace(request(prompt_of(5)), **fields), None, lambda outcome: None)
    assert not sampler.busy


def test_stop_strings_need_a_decoder(weights: Weights) -> None:
    sampler = Sampler()
    sampler.set_weights(KEY, weights)
    with pytest.raises(ValueError, match="decoder"):
        sampler.submit(request(prompt_of(5), stop=("x",)), None, lambda outcome: None)
    with pytest.raises(ValueError, match="slots"):
        Sampler(slots=0)


def test_broken_weights_fail_their_requests_and_no_others(
    model: PreTrainedModel, weights: Weights, tmp_path: Path
) -> None:
    broken = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path))
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    sampler = sampler_of(weights)
    sampler.set_weights("broken", snapshot(broken))
    bad, good = outcomes(sampler, [replace(request(prompt_of(9)), weights_key="broken"), request(prompt_of(9))])
    assert isinstance(bad, NonFiniteLogits)
    assert isinstance(good, Sample)


def test_lanes_change_no_bit(model: PreTrainedModel, weights: Weights) -> None:
    """Rows are decoded in parts, and prompts are prefilled at the same time."""
    requests = mixed_requests(70)
    replies = samples(sampler_of(snapshot(model, lanes=Lanes(3)), slots=70), requests)
    for sample_request, sample in zip(requests, replies, strict=True):
        assert (sample.ids, sample.logprobs) == alone(weights, sample_request)


def test_out_of_memory_means_fewer_rows_together(weights: Weights) -> None:
    requests = mixed_requests(30)
    sampler = sampler_of(Cramped(weights, rows=8))
    for sample_request, sample in zip(requests, samples(sampler, requests), strict=True):
        assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
        assert len(sample.top) == (len(sample.ids) if sample_request.top_logprobs else 0)


def test_a_request_that_does_not_fit_alone_fails_alone(weights: Weights) -> None:
    sampler = sampler_of(Cramped(weights, tokens=100))
    small, large, other = outcomes(sampler, [request(prompt_of(length), 30) for length in (20, 200, 30)])
    assert isinstance(small, Sample)
    assert isinstance(other, Sample)
    assert isinstance(large, OutOfMemory)
    never = sampler_of(Cramped(weights, rows=0))
    assert [type(outcome) for outcome in outcomes(never, [request(prompt_of(9))] * 3)] == [OutOfMemory] * 3
    assert not never.busy


@pytest.mark.parametrize(
    "options",
    [
        {"cache_bytes": 1 << 26},
        {"slots": 3, "cache_bytes": 1 << 26},
        {"slots": 16, "cache_bytes": 1},  # pages for one whole context: most conversations wait
    ],
)
def test_rows_that_are_prefilled_together_give_the_same_samples(weights: Weights, options: dict[str, int]) -> None:
    requests = mixed_requests(24)
    packed = Packed(weights)
    sampler = sampler_of(packed, **options)
    for _ in range(2):
        for sample_request, sample in zip(requests, samples(sampler, requests), strict=True):
            assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
    assert max(map(len, packed.passes)) > 1


def test_a_gpu_has_begun_the_next_step_when_a_token_is_reported(weights: Weights) -> None:
    packed = Packed(weights)
    sampler, sample_request = sampler_of(packed, cache_bytes=1 << 26), request(prompt_of(50), max_tokens=20)
    begun: list[int] = []
    ended: list[Sample | Exception] = []
    sampler.submit(sample_request, lambda token, logprob: begun.append(packed.steps), ended.append)
    while sampler.busy:
        sampler.step()
    [sample] = ended
    assert isinstance(sample, Sample)
    assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
    assert begun == [*range(2, 21), 20], "the last token of a reply that is as long as it may be is known to be that"
    assert packed.steps == sampler.figures.decode_steps == 20


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_are_begun_early_count_only_for_replies_that_go_on(weights: Weights, seed: int) -> None:
    """Requests come and are cancelled at any time, and share few pages: rows and pages change hands."""
    draw = random.Random(seed)
    waiting = mixed_requests(40)
    sampler = sampler_of(Packed(weights), slots=draw.choice([3, 8, 20]), cache_bytes=draw.choice([1, 1 << 20, 1 << 26]))
    outcome_of: dict[int, Sample | Exception] = {}
    numbers: dict[int, int] = {}
    while sampler.busy or waiting:
        for _ in range(min(len(waiting), draw.choice([0, 0, 1, 6]))):
            sample_request = waiting.pop()
            numbers[len(waiting)] = sampler.submit(sample_request, None, partial(outcome_of.__setitem__, len(waiting)))
        if numbers and draw.random() < 0.1:
            sampler.cancel(numbers[draw.choice(list(numbers))])
        sampler.step()
    assert len(outcome_of) == 40
    for index, sample_request in enumerate(mixed_requests(40)):
        outcome = outcome_of[index]
        if isinstance(outcome, Sample):
            assert (outcome.ids, outcome.logprobs) == alone(weights, sample_request)
        else:
            assert isinstance(outcome, SampleCancelled)


def test_what_prompts_share_is_prefilled_once(weights: Weights) -> None:
    """Twelve groups of four, as a learn-loop asks: one system prompt, a question for each group."""
    system, packed = prompt_of(200, seed=1), Packed(weights)
    prompts = [system + prompt_of(50, seed=10 + group) for group in range(12) for _ in range(4)]
    sampler = sampler_of(packed, slots=64, cache_bytes=1 << 26)
    replies = samples(sampler, [request(prompt, max_tokens=2, seed=n) for n, prompt in enumerate(prompts)])
    assert sum(map(sum, packed.passes)) == 200 + 12 * 50 - 12
    assert len(packed.passes) == 2
    assert sum(sample.prompt_tokens - sample.cached_tokens for sample in replies) == 200 + 12 * 50 - 12 + 48


def test_a_conversation_that_grows_is_not_prefilled_again(weights: Weights) -> None:
    """Four of them grow from a few tokens to the whole context, all in the cache that was created first."""
    packed = Packed(weights)
    sampler = sampler_of(packed, slots=8, cache_bytes=1 << 24)
    conversations = [prompt_of(20 + 7 * number, seed=number) for number in range(4)]
    prompts = conversations
    for turn in range(4):
        requests = [request(prompt, 12, seed=10 * turn + number) for number, prompt in enumerate(prompts)]
        replies = samples(sampler, requests)
        for sample_request, sample in zip(requests, replies, strict=True):
            assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
        if turn:
            assert [s.cached_tokens for s in replies] == [len(c) - 1 for c in conversations]
        conversations = [[*prompt, *sample.ids] for prompt, sample in zip(prompts, replies, strict=True)]
        prompts = [c + prompt_of(90, seed=100 * turn + number) for number, c in enumerate(conversations)]
    assert len(packed.caches) == 1


def test_conversations_that_need_the_same_pages_wait_for_one_another(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies outgrow the pages reserved for them: the youngest make room, and continue later where they were."""
    monkeypatch.setattr("learnloop_service.training.engine.sampling.admission.PAGED_REPLY", 1)
    packed = Packed(weights)
    sampler = sampler_of(packed, slots=8, cache_bytes=1)
    requests = [request(prompt_of(60, seed=number), 150, seed=number) for number in range(5)]
    for sample_request, sample in zip(requests, samples(sampler, requests), strict=True):
        assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
    [cache] = packed.caches
    assert int(cache.held.sum()) <= cache.pages == 9  # a context of 512 tokens and one more: not three conversations


def test_a_renamed_key_knows_nothing_of_the_conversations_before(weights: Weights) -> None:
    sampler = sampler_of(weights)
    prompt = prompt_of(50)
    (first,) = samples(sampler, [request(prompt)])
    sampler.rename(KEY, KEY)
    (again,) = samples(sampler, [request(prompt)])
    assert again.ids == first.ids
    assert again.cached_tokens == 0


def test_a_successor_takes_over_the_cache_without_its_conversations(weights: Weights) -> None:
    sampler = sampler_of(weights)
    before = samples(sampler, mixed_requests(12))
    cache_bytes = sampler.figures.cache_bytes
    sampler.set_weights("next", weights, successor_of=KEY)
    assert sampler.figures.cache_bytes == cache_bytes
    assert sampler.figures.cache_tokens == 0
    following = [replace(sample_request, weights_key="next") for sample_request in mixed_requests(12)]
    after = samples(sampler, following)
    assert [(sample.ids, sample.logprobs) for sample in after] == [(sample.ids, sample.logprobs) for sample in before]
    assert samples(sampler, mixed_requests(12)) == before, "the one before begins with an empty cache again"


def test_a_successor_leaves_the_cache_to_conversations_under_way(weights: Weights) -> None:
    sampler = sampler_of(weights)
    ended: list[Sample | Exception] = []
    sampler.submit(request(prompt_of(40)), None, ended.append)
    sampler.step()
    sampler.set_weights("next", weights, successor_of=KEY)
    while sampler.busy:
        sampler.step()
    (sample,) = ended
    assert isinstance(sample, Sample)
    assert (sample.ids, sample.logprobs) == alone(weights, request(prompt_of(40)))


def test_a_call_with_many_replies_gives_way_to_one_with_a_single_reply(weights: Weights) -> None:
    sampler = sampler_of(weights, slots=4)
    many = [request(prompt_of(9, number), 30, call="many") for number in range(8)]
    single = request(prompt_of(12, 50), 4)
    outcome_of: dict[SampleRequest, Any] = {}
    for sample_request in many:
        sampler.submit(sample_request, None, partial(outcome_of.__setitem__, sample_request))
    for _ in range(5):
        sampler.step()
    sampler.submit(single, None, partial(outcome_of.__setitem__, single))
    while sampler.busy:
        sampler.step()
    assert next(iter(outcome_of)) is single
    assert [
        (outcome_of[sample_request].ids, outcome_of[sample_request].logprobs) for sample_request in (*many, single)
    ] == [alone(weights, sample_request) for sample_request in (*many, single)]


def test_calls_with_many_replies_share_the_batch_evenly(weights: Weights) -> None:
    sampler = sampler_of(weights, slots=4)
    ended: dict[SampleRequest, Any] = {}
    for call in ("first", "second"):
        for number in range(8):
            sample_request = request(prompt_of(9, number), 20, call=call)
            sampler.submit(sample_request, None, partial(ended.__setitem__, sample_request))
        sampler.step()
    while sampler.busy:
        sampler.step()
    assert Counter(sample_request.call for sample_request in list(ended)[:8]) == {"first": 4, "second": 4}

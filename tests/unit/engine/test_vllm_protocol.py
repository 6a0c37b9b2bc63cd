"""What vLLM answers, whole, in pieces, and when it is no answer."""

from typing import Any

import pytest

from learnloop_service.training.engine.sampling.requests import NonFiniteLogits, SampleRequest
from learnloop_service.training.engine.vllm.protocol import BadReply, SampleReply, figures, scored

REQUEST = SampleRequest((5, 6), "tiny", 8)


def _piece(**choice: Any) -> dict[str, Any]:
    usual = {
        "token_ids": [7, 8],
        "logprobs": {"token_logprobs": [-0.1, -9999.0], "top_logprobs": [{"token_id:7": -0.1}, {}]},
        "finish_reason": "stop",
        "stop_reason": None,
    }
    return {"choices": [usual | choice], "usage": None}


def _read(piece: Any) -> None:
    reply = SampleReply()
    reply.add(piece, 0)
    reply.sample(REQUEST, 3, 10)


@pytest.mark.parametrize(
    ("stop_reason", "stop_text"), [(None, None), (2, None), ("</tool_call>", "</tool_call>")], ids=str
)
def test_what_ended_it(stop_reason: object, stop_text: str | None) -> None:
    reply = SampleReply()
    assert reply.add(_piece(stop_reason=stop_reason), 0) == [(7, -0.1), (8, -9999.0)]
    sample = reply.sample(REQUEST, 3, 10)
    assert sample.ids == [7, 8]
    assert sample.finish_reason == "stop"
    assert sample.stop_text == stop_text
    assert sample.seed == 3


@pytest.mark.parametrize(
    "piece",
    [
        None,
        [],
        {},
        {"choices": [{}]},
        {"choices": [None]},
        {"choices": [1, 2]},
        _piece(token_ids=["x", 8]),
        _piece(token_ids=[7]),
        _piece(logprobs=None),
        _piece(logprobs={"token_logprobs": [0.7, -1], "top_logprobs": []}),
        _piece(finish_reason="abort"),
        _piece(token_ids=[7, 10]),
        _piece(token_ids=[7, -1]),
        _piece(token_ids=[], logprobs=None),
    ],
)
def test_no_answer(piece: Any) -> None:
    with pytest.raises(BadReply):
        _read(piece)


def test_weights_that_give_no_numbers() -> None:
    with pytest.raises(NonFiniteLogits):
        SampleReply().add(_piece(logprobs={"token_logprobs": [float("nan"), -1], "top_logprobs": []}), 0)


def test_alternatives_are_the_most_likely_ones() -> None:
    """vLLM names the sampled token among them, too."""
    reply = SampleReply()
    top = [{"token_id:9": -3.0, "token_id:1": -0.2, "token_id:2": -0.4}] * 2
    reply.add(_piece(logprobs={"token_logprobs": [-3.0, -3.0], "top_logprobs": top}), 2)
    assert reply.top == [[(1, -0.2), (2, -0.4)]] * 2


@pytest.mark.parametrize("reply", [None, {"choices": []}, {"choices": [{"prompt_logprobs": [None, {"8": {}}]}]}])
def test_tokens_that_are_not_scored(reply: Any) -> None:
    with pytest.raises(BadReply):
        scored(reply, [8])


def test_figures_of_all_its_engines() -> None:
    totals = figures(
        "\n".join(
            [
                "# HELP vllm:num_requests_running Number of requests.",
                'vllm:num_requests_running{engine="0",model_name="base"} 3.0',
                'vllm:num_requests_running{engine="1",model_name="base"} 2.0',
                'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0',
                'vllm:kv_cache_usage_perc{engine="0"} 0.25',
                'vllm:cache_config_info{block_size="16",kept="[]",num_gpu_blocks="100",x="None"} 1.0',
                'vllm:prompt_tokens_total{engine="0"} 50.0',
                'vllm:prefix_cache_hits_total{engine="0"} 20.0',
                'vllm:generation_tokens_total{engine="0"} 1.2e+03',
            ]
        )
    )
    assert totals.batch_size == 5
    assert totals.requests_waiting == 0
    assert totals.cache_tokens == 400
    assert totals.cache_capacity_tokens == 1600
    assert totals.prefilled_tokens == 30
    assert totals.reused_tokens == 20
    assert totals.sampled_tokens == 1200

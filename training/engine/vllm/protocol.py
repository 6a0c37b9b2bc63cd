"""Requests to vLLM's HTTP API and its replies. They consist of token ids; vLLM never sees a conversation.

`/v1/completions` takes a prompt of ids, returns the sampled ids, and has been stable since vLLM 0.24.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import NonFiniteLogits, Sample, SampleRequest

_LOWEST_LOGPROB = -9999.0
"""Value that vLLM reports in place of any lower log-probability."""


class BadReply(Exception):
    """vLLM's reply does not conform to its protocol."""


def completion(
    request: SampleRequest, model: str, *, seed: int, max_tokens: int, stream: bool, grammar: str | None
) -> dict[str, Json]:
    """Return the request for one sample, with the grammar in vLLM's form. Every option is explicit, so vLLM's defaults
    do not matter."""
    body = {
        "model": model,
        "prompt": request.prompt,
        "add_special_tokens": False,
        "max_tokens": max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "stop": request.stop,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,  # only the stop tokens in the request end the reply
        "skip_special_tokens": False,  # stop strings are searched in the whole text, as in our sampler
        "logprobs": request.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if grammar is not None:
        body["structured_outputs"] = {"grammar": grammar}
    return body


def scoring(ids: Sequence[int], model: str) -> dict[str, Json]:
    """Return the request for the log-probabilities of given tokens."""
    return {
        "model": model,
        "prompt": ids,
        "add_special_tokens": False,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


@dataclass(slots=True)
class SampleReply:
    """The reply to one sample, complete or received so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_text: str | None = None
    cached_tokens: int = 0

    def add(self, piece: Json, top: int) -> list[tuple[int, float]]:
        """Add a completion or a chunk of one, and return its tokens with their log-probabilities. `top` is the number
        of alternatives requested.

        Raises BadReply or NonFiniteLogits.
        """
        try:
            if piece.get("usage"):
                details = piece["usage"].get("prompt_tokens_details") or {}
                self.cached_tokens = int(details.get("cached_tokens") or 0)
            if not piece["choices"]:
                return []
            [choice] = piece["choices"]
            ids = [int(id) for id in choice["token_ids"] or ()]
            of_tokens = choice["logprobs"] or {"token_logprobs": [], "top_logprobs": []}
            logprobs = [_logprob(value) for value in of_tokens["token_logprobs"]]
            if len(ids) != len(logprobs):
                raise BadReply(f"vLLM answered with {len(ids)} tokens and {len(logprobs)} log-probabilities")
            if top:
                self.top += [_likeliest(alternatives, top) for alternatives in of_tokens["top_logprobs"]]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            stopped_by = choice.get("stop_reason")
            self.stop_text = stopped_by if isinstance(stopped_by, str) else self.stop_text
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadReply(f"vLLM's reply is no completion: {error!r}") from error
        self.ids += ids
        self.logprobs += logprobs
        return list(zip(ids, logprobs, strict=True))

    def sample(self, request: SampleRequest, seed: int, vocab_size: int) -> Sample:
        """Return the sample. Raises BadReply if it cannot have been sampled for the request."""
        if self.finish_reason not in ("stop", "length"):
            raise BadReply(f"vLLM ended a completion with {self.finish_reason!r}")
        if not self.ids or not 0 <= min(self.ids) <= max(self.ids) < vocab_size:
            raise BadReply("vLLM's completion has no tokens, or such as the model does not have")
        if request.top_logprobs and len(self.top) != len(self.ids):
            raise BadReply("vLLM did not tell the alternatives of each token")
        return Sample(
            ids=self.ids,
            logprobs=self.logprobs,
            finish_reason="stop" if self.finish_reason == "stop" else "length",
            seed=seed,
            prompt_tokens=len(request.prompt),
            cached_tokens=self.cached_tokens,
            top=self.top,
            stop_text=self.stop_text,
        )


def scored(reply: Json, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each of the last `ids` of a prompt. Raises BadReply or NonFiniteLogits."""
    try:
        positions = reply["choices"][0]["prompt_logprobs"][-len(ids) :]
        return [_logprob(position[str(id)]["logprob"]) for position, id in zip(positions, ids, strict=True)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadReply(f"vLLM did not score the tokens: {error!r}") from error


def figures(metrics: str) -> SamplingFigures:
    """Convert vLLM's `/metrics`, summed over all its engines. They do not include the size of the cache in bytes."""
    values: dict[str, float] = {}
    capacity = 0
    for line in metrics.split("\n"):
        name, _, rest = line.partition("{")
        if name == "vllm:cache_config_info":
            labels = dict(pair.split("=", 1) for pair in rest.partition("}")[0].split(",") if "=" in pair)
            blocks, size = (labels.get(label, "").strip('"') for label in ("num_gpu_blocks", "block_size"))
            capacity += int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else 0
        elif name.startswith("vllm:"):
            values[name] = values.get(name, 0.0) + float(rest.rpartition(" ")[2])

    def count(name: str) -> int:
        return int(values.get(f"vllm:{name}", 0))

    reused = count("prefix_cache_hits_total")
    return SamplingFigures(
        batch_size=count("num_requests_running"),
        requests_waiting=count("num_requests_waiting"),
        cache_tokens=int(values.get("vllm:kv_cache_usage_perc", 0.0) * capacity),
        cache_capacity_tokens=capacity,
        cache_bytes=0,
        decode_steps=count("iteration_tokens_total_count"),
        sampled_tokens=count("generation_tokens_total"),
        prefilled_tokens=max(count("prompt_tokens_total") - reused, 0),
        reused_tokens=reused,
    )


def _logprob(value: Json) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise NonFiniteLogits("vLLM's weights give log-probabilities that are not finite")
    if number > 1e-3:
        raise BadReply(f"vLLM gave {number} as a log-probability")
    return max(number, _LOWEST_LOGPROB)


def _likeliest(alternatives: Mapping[str, Json], count: int) -> list[tuple[int, float]]:
    """Return the most likely alternatives. vLLM also lists the sampled token if it is not one of them."""
    scored: Iterable[tuple[int, float]] = (
        (int(token.removeprefix("token_id:")), _logprob(value)) for token, value in alternatives.items()
    )
    return sorted(scored, key=lambda pair: -pair[1])[:count]

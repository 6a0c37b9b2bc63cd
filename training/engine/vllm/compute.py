"""Computing with vLLM as the sampler: training stays on our compute thread, and vLLM gets what it has trained.

A request names the checkpoint that it is sampled from, and vLLM is given those weights before: an adapter under a name
that stands for its files, or a checkpoint that was trained whole in place of the base's weights. So nothing has to be
pushed after a step, and whatever is asked for step n + 1 is never answered by step n.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from training.engine.compute import Compute
from training.engine.engine import Engine
from training.engine.registry.base_models import vocabulary_size
from training.engine.registry.checkpoints import ADAPTER_FILE, MANIFEST_FILE
from training.engine.registry.model_record import Target
from training.engine.reproducibility import Reproducibility
from training.engine.sampling.figures import SamplingFigures
from training.engine.sampling.requests import (
    ContextTooLong,
    NotSampledThere,
    OnToken,
    Sample,
    SampleRequest,
    SamplerUnavailable,
)
from training.engine.vllm.grammar import for_vllm
from training.engine.vllm.protocol import BadReply, Reply, completion, scored, scoring
from training.engine.vllm.running import RunningVllm, VllmLost, VllmRefused
from training.engine.vllm.server import VllmServer
from training.engine.vllm.turns import Turns

log = structlog.get_logger(__name__)

NOT_REPRODUCIBLE = Reproducibility(False, "vLLM samples: the last bits of a sample depend on what shares its batch.")
_BEGINNINGS = 3
"""So often a conversation is begun when vLLM is lost on the way, each time with the same seed."""
_ANY_SIZE = 1 << 31


@dataclass(frozen=True, slots=True)
class _Weights:
    """What a target is to vLLM: a process with this `base`, the weights in `whole` (the base's own, or a checkpoint
    that was trained whole), and perhaps an adapter on top of them."""

    base: Path
    whole: Path
    has_adapter: bool = False


class VllmCompute(Compute):
    """Computing on a thread of this process, but for sampling."""

    def __init__(
        self, engine: Engine, server: VllmServer, *, threads: int = 1, train_threads: int | None = None
    ) -> None:
        """The engine trains and has no sampler of its own to keep up with it."""
        super().__init__(engine, threads=threads, train_threads=train_threads)
        self._server = server
        self._turns: Turns[tuple[Path, Path]] = Turns()

    @property
    def sampling(self) -> SamplingFigures:
        """As far as vLLM tells them."""
        running = self._server.running
        return (running and running.figures) or super().sampling

    @property
    def reproducibility(self) -> Reproducibility:
        """It is not."""
        return NOT_REPRODUCIBLE

    @property
    def details(self) -> Mapping[str, Any]:
        """What samples, and how it is."""
        return {"sampler": {"name": "vllm", **self._server.state}}

    async def check(self, model_id: str) -> Reproducibility:
        """Have vLLM ready for the model, which takes minutes if it is not; whoever samples then need not wait.

        Raises UnknownModel, SamplerUnavailable, NotSampledThere.
        """
        registry = self._engine.registry
        weights = self._weights(await asyncio.to_thread(registry.resolve, registry.get(model_id).full_name))
        async with self._turns.of((weights.base, weights.whole)):
            await self._server.vllm(weights.base)
        return NOT_REPRODUCIBLE

    async def close(self) -> None:
        """As Compute; vLLM ends too."""
        await self._server.close()
        await super().close()

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """One sample. Raises SamplerUnavailable, NotSampledThere, ContextTooLong, NonFiniteLogits, UnknownModel (the
        model was deleted meanwhile) and what loading a checkpoint raises."""
        weights = self._weights(target)
        seed = secrets.randbits(53) if request.seed is None else request.seed
        grammar = None if request.grammar is None else for_vllm(request.grammar.text, self._engine.tokenizer(target))
        told = 0

        def on_new_token(id: int, logprob: float) -> None:
            nonlocal told
            told += 1
            if on_token:
                on_token(id, logprob)

        for beginning in range(1, _BEGINNINGS + 1):
            try:
                async with self._loaded(target, weights) as (vllm, name):
                    told_to = on_new_token if on_token else None
                    sample = await _sampled(vllm, name, weights.base, request, grammar, seed, told_to)
                break
            except VllmLost as error:
                why = await self._server.why_lost(error)
                if told or beginning == _BEGINNINGS:
                    raise SamplerUnavailable(why) from error
                log.warning("a conversation begins again: vLLM was lost", model=target.key, why=why)
            except BadReply as error:
                raise SamplerUnavailable(str(error)) from error
        if target.model is not None:
            self._engine.registry.get(target.model.id)
        return sample

    def _weights(self, target: Target) -> _Weights:
        """Raises NotSampledThere."""
        if target.model is None:
            return _Weights(target.directory, target.directory)
        if target.tuning.mode == "lora":
            # A fresh adapter changes nothing yet.
            has_adapter = (target.directory / ADAPTER_FILE).is_file()
            return _Weights(target.base_directory, target.base_directory, has_adapter)
        if not self._server.loads_whole_weights:
            raise NotSampledThere(
                f"{target.model.full_name} is trained whole, and its weights cannot be put into a vLLM that somebody "
                'else runs. Let the engine start vLLM (--vllm-command), or train by LoRA: "tuning": {"mode": "lora"}'
            )
        base = self._engine.registry.base_directory(target.model.base_model)
        return _Weights(base, target.directory)

    @asynccontextmanager
    async def _loaded(self, target: Target, weights: _Weights) -> AsyncIterator[tuple[RunningVllm, str]]:
        """vLLM with the weights, and what it calls them."""
        async with self._turns.of((weights.base, weights.whole)):
            vllm = await self._server.vllm(weights.base)
            try:
                await vllm.have(weights.whole)
                if not weights.has_adapter:
                    yield vllm, vllm.model
                    return
                name = _adapter_name(target)
                async with vllm.adapter(name, target.directory):
                    yield vllm, name
            except (VllmRefused, OSError) as error:
                raise await self._named(error, target) from error

    async def _named(self, error: VllmRefused | OSError, target: Target) -> Exception:
        """What an error reply means. Raises CorruptCheckpoint if the checkpoint's files were lost since they were
        verified."""
        if target.model is not None:
            await asyncio.to_thread(self._engine.registry.recheck, target.model.id, target.step)
        if not isinstance(error, VllmRefused):
            return SamplerUnavailable(f"the weights of {target.key} cannot be read: {error}")
        if error.status == httpx.codes.NOT_FOUND or error.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            # It does not know the adapter any more, or has failed, or is about to end.
            return VllmLost(f"vLLM failed on {target.key}: {error}")
        if "max_lora_rank" in str(error):
            rank = target.tuning.rank
            return NotSampledThere(f"vLLM refuses the adapter: {error}. Start it with --max-lora-rank {rank} or more")
        return NotSampledThere(f"vLLM refuses the request: {error}")


async def _sampled(
    vllm: RunningVllm,
    model: str,
    base: Path,
    request: SampleRequest,
    grammar: str | None,
    seed: int,
    on_token: OnToken | None,
) -> Sample:
    """Raises ContextTooLong, NonFiniteLogits, BadReply, VllmLost, VllmRefused."""
    # To score a constrained reply takes a token more.
    room = vllm.context - len(request.prompt) - (request.grammar is not None)
    if room < 1:
        raise ContextTooLong(len(request.prompt), vllm.context)
    reply, top = Reply(), request.top_logprobs
    stream = on_token is not None and request.grammar is None
    most = min(request.max_tokens, room)
    body = completion(request, model, seed=seed, max_tokens=most, stream=stream, grammar=grammar)

    def on_event(data: str) -> None:
        try:
            piece = json.loads(data)
        except ValueError as error:
            raise BadReply(f"an event of vLLM is not JSON: {error}") from error
        for token in reply.add(piece, top):
            if on_token:
                on_token(*token)

    if stream:
        await vllm.stream("/v1/completions", body, on_event)
    else:
        reply.add(await vllm.ask("/v1/completions", body), top)
    sample = reply.sample(request, seed, vocabulary_size(base) or _ANY_SIZE)
    if request.grammar is not None:
        # vLLM tells log-probabilities under the grammar; ours are the model's own.
        ids = sample.ids
        sample.logprobs = scored(await vllm.ask("/v1/completions", scoring([*request.prompt, *ids], model)), ids)
        if on_token is not None:
            for token in zip(ids, sample.logprobs, strict=True):
                on_token(*token)
    return sample


def _adapter_name(target: Target) -> str:
    """Other files have another name, also if the checkpoint of that step was written anew."""
    manifest = (target.directory / MANIFEST_FILE).read_bytes()
    return f"{target.key}-{hashlib.sha256(manifest).hexdigest()[:16]}"

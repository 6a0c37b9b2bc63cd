"""Computing with vLLM as the sampler. Training stays on our compute thread, and vLLM gets the trained weights.

A request names the checkpoint to sample from, and vLLM gets those weights beforehand: an adapter under a name that
identifies its files, or a fully trained checkpoint in place of the base's weights. Nothing has to be pushed after a
step, therefore, and a request for step n + 1 is never answered by step n.
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

from learnloop_service.training.engine.compute import Compute
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.base_models import vocabulary_size
from learnloop_service.training.engine.registry.checkpoints import ADAPTER_FILE, MANIFEST_FILE
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import (
    ContextTooLong,
    NotSampledThere,
    OnToken,
    Sample,
    SampleRequest,
    SamplerUnavailable,
)
from learnloop_service.training.engine.vllm.grammar import for_vllm
from learnloop_service.training.engine.vllm.protocol import BadReply, SampleReply, completion, scored, scoring
from learnloop_service.training.engine.vllm.running import RunningVllm, VllmLost, VllmRefused
from learnloop_service.training.engine.vllm.server import VllmServer
from learnloop_service.training.engine.vllm.turns import Turns
from learnloop_service.training.protocol.model_facts import Reproducibility

log = structlog.get_logger(__name__)

NOT_REPRODUCIBLE = Reproducibility(False, "vLLM samples: the last bits of a sample depend on what shares its batch.")
_BEGINNINGS = 3
"""Maximum number of times that a conversation is sampled when vLLM is lost during it, each time with the same seed."""
_ANY_SIZE = 1 << 31


@dataclass(frozen=True, slots=True)
class _Weights:
    """What vLLM needs for a target: a process with this `base`, the weights in `whole` (the base's own or a fully
    trained checkpoint), and optionally an adapter on top of them."""

    base: Path
    whole: Path
    has_adapter: bool = False


class VllmCompute(Compute):
    """Computing on a thread of this process, except for sampling, which vLLM does."""

    def __init__(self, engine: Engine, server: VllmServer, *, threads: int = 1) -> None:
        """`engine` trains, and need not keep trained weights for sampling."""
        super().__init__(engine, threads=threads)
        self._server = server
        self._turns: Turns[tuple[Path, Path]] = Turns()

    @property
    def sampling(self) -> SamplingFigures:
        """Figures of sampling, as far as vLLM reports them."""
        running = self._server.running
        return (running and running.figures) or super().sampling

    @property
    def reproducibility(self) -> Reproducibility:
        """The verdict that vLLM's samples are not reproducible."""
        return NOT_REPRODUCIBLE

    @property
    def details(self) -> Mapping[str, Any]:
        """The sampler and its state."""
        return {"sampler": {"name": "vllm", **self._server.state}}

    async def check(self, model_id: str) -> Reproducibility:
        """Get vLLM ready for the model, so that later samples need not wait. It takes minutes if vLLM is not ready.

        Raises UnknownModel, SamplerUnavailable or NotSampledThere.
        """
        registry = self._engine.registry
        weights = self._weights(await asyncio.to_thread(registry.resolve, registry.get(model_id).full_name))
        async with self._turns.of((weights.base, weights.whole)):
            await self._server.vllm(weights.base)
        return NOT_REPRODUCIBLE

    async def close(self) -> None:
        """Close like Compute, and end vLLM."""
        await self._server.close()
        await super().close()

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """Return one sample. Raises SamplerUnavailable, NotSampledThere, ContextTooLong, NonFiniteLogits, UnknownModel
        (the model was deleted in the meantime) and the errors of loading a checkpoint."""
        weights = self._weights(target)
        seed = secrets.randbits(53) if request.seed is None else request.seed
        grammar = None if request.grammar is None else for_vllm(request.grammar.text, self._engine.tokenizer(target))
        tokens_sent = 0

        def on_new_token(id: int, logprob: float) -> None:
            nonlocal tokens_sent
            tokens_sent += 1
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
                if tokens_sent or beginning == _BEGINNINGS:
                    raise SamplerUnavailable(why) from error
                log.warning("a conversation begins again: vLLM was lost", model=target.key, why=why)
            except BadReply as error:
                raise SamplerUnavailable(str(error)) from error
        if target.model is not None:
            self._engine.registry.get(target.model.id)
        return sample

    def _weights(self, target: Target) -> _Weights:
        """Return what vLLM needs for a target. Raises NotSampledThere."""
        if target.model is None:
            return _Weights(target.directory, target.directory)
        if target.tuning.mode == "lora":
            # A fresh adapter does not change the outputs, so it is left out.
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
        """Yield vLLM with the weights loaded, and the name that it has for them."""
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
        """Translate an error reply to an exception. Raises CorruptCheckpoint if the checkpoint's files were lost since
        they were verified."""
        if target.model is not None:
            await asyncio.to_thread(self._engine.registry.recheck, target.model.id, target.step)
        if not isinstance(error, VllmRefused):
            return SamplerUnavailable(f"the weights of {target.key} cannot be read: {error}")
        if error.status == httpx.codes.NOT_FOUND or error.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            # vLLM has dropped the adapter, has failed, or is about to end.
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
    """Sample a reply. Raises ContextTooLong, NonFiniteLogits, BadReply, VllmLost or VllmRefused."""
    # Scoring a constrained reply takes one extra token.
    room = vllm.context - len(request.prompt) - (request.grammar is not None)
    if room < 1:
        raise ContextTooLong(len(request.prompt), vllm.context)
    reply, top = SampleReply(), request.top_logprobs
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
        # vLLM reports log-probabilities under the grammar; ours are the model's own.
        ids = sample.ids
        sample.logprobs = scored(await vllm.ask("/v1/completions", scoring([*request.prompt, *ids], model)), ids)
        if on_token is not None:
            for token in zip(ids, sample.logprobs, strict=True):
                on_token(*token)
    return sample


def _adapter_name(target: Target) -> str:
    """Return a name that is unique to the files, even if the checkpoint of that step was written anew."""
    manifest = (target.directory / MANIFEST_FILE).read_bytes()
    return f"{target.key}-{hashlib.sha256(manifest).hexdigest()[:16]}"

"""Measure an ART-E iteration on one GPU, next to the physical limit, TRL and vLLM: `python -m benchmarks.engine.gpu`.

A model too large for one GPU (72B) is measured on as many as it needs. With `--gpus 2` each GPU has a process with the
whole model and makes its share of the rollouts; all take the training step together.

The work has the shape of agent_008 (openpipe-art, examples/art-e): 12 groups of 4 rollouts, 4 turns, a first prompt of
1,000 tokens (900 of them shared by all), replies of 60 and tool results of 500 tokens, then one GRPO step on a LoRA
adapter of rank 8 on all linear layers. Weights and tokens are random and lengths are forced, which is valid for speed
and memory but not for learning. The engine's sampler, policy and training step are called directly, without HTTP,
tokenizer or environment. Needs one GPU, and for `--peer` vLLM and the packages of the extra `bench`.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen2Config, Qwen3Config

GROUPS, ROLLOUTS, TURNS = 12, 4, 4
SHARED_PROMPT, OWN_PROMPT, REPLY, TOOL_RESULT = 900, 100, 60, 500
PEAK_FLOPS, BANDWIDTH = 790e12, 4.3e12
"""Measured on one H200: bfloat16 products of 8192 x 8192 x 8192, and bytes read and written by a copy."""
DATASHEET_FLOPS = 989e12
LONG_PROMPTS, LONG_PROMPT = 4, 30_000
PEERS = (
    ("TRL with vLLM", "benchmarks.engine.gpu_trl"),
    ("vLLM", "benchmarks.engine.gpu_vllm"),
    ("vLLM in fp8", "benchmarks.engine.gpu_vllm", "--quantization", "fp8"),
)


def qwen(kind: Any, **shape: Any) -> PreTrainedConfig:
    """Build a config of the given shape with the vocabulary size of Qwen models."""
    config: PreTrainedConfig = kind(vocab_size=151_936, max_position_embeddings=32_768, **shape)
    return config


MODELS: dict[str, Callable[[], PreTrainedConfig]] = {
    "0.6B": partial(qwen, Qwen3Config, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                    num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "1.7B": partial(qwen, Qwen3Config, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
                    num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "8B": partial(qwen, Qwen3Config, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=36,
                  num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False),
    "14B": partial(qwen, Qwen2Config, hidden_size=5120, intermediate_size=13_824, num_hidden_layers=48,
                   num_attention_heads=40, num_key_value_heads=8, tie_word_embeddings=False),
    "32B": partial(qwen, Qwen2Config, hidden_size=5120, intermediate_size=27_648, num_hidden_layers=64,
                   num_attention_heads=40, num_key_value_heads=8, tie_word_embeddings=False),
    "72B": partial(qwen, Qwen2Config, hidden_size=8192, intermediate_size=29_568, num_hidden_layers=80,
                   num_attention_heads=64, num_key_value_heads=8, tie_word_embeddings=False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions from which a model's work is computed."""

    body: int
    """Parameters of the layers' matrices."""
    head: int
    layers: int
    query_width: int
    kv_bytes: int
    """Bytes of one cached token in bfloat16."""

    @classmethod
    def of(cls, config: Any) -> "Shape":
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
        return cls(
            layer * config.num_hidden_layers,
            config.vocab_size * config.hidden_size,
            config.num_hidden_layers,
            queries,
            4 * keys * config.num_hidden_layers,
        )

    def limit(self) -> float:
        """Return the minimum seconds for the iteration's arithmetic and memory traffic, computing each prefix once."""
        count = GROUPS * ROLLOUTS
        whole = SHARED_PROMPT + OWN_PROMPT + TURNS * REPLY + (TURNS - 1) * TOOL_RESULT
        contexts = [SHARED_PROMPT + OWN_PROMPT + t * (REPLY + TOOL_RESULT) + REPLY / 2 for t in range(TURNS)]
        step = (2 * (self.body + self.head) + count * statistics.mean(contexts) * self.kv_bytes) / BANDWIDTH
        new = SHARED_PROMPT + GROUPS * OWN_PROMPT + count * (TURNS - 1) * TOOL_RESULT
        prefill = 2 * self.body * new + self._attention(count * whole**2 / 2) * 2
        prompt = SHARED_PROMPT + OWN_PROMPT
        trained = SHARED_PROMPT + GROUPS * OWN_PROMPT + count * (whole - prompt)
        pairs = (SHARED_PROMPT**2 + GROUPS * (prompt**2 - SHARED_PROMPT**2) + count * (whole**2 - prompt**2)) / 2
        return TURNS * REPLY * step + (prefill + self.training(trained, pairs)) / PEAK_FLOPS

    def training(self, tokens: int, pairs: float) -> float:
        """Return the useful floating-point operations of a LoRA step's forward and backward pass, without repetitions.

        4 per parameter and distinct token, 4 per parameter of the head and reply token, and for attention 2 + 4
        products
        per pair of distinct tokens.
        """
        replies = GROUPS * ROLLOUTS * TURNS * REPLY
        return 4 * self.body * tokens + 4 * self.head * replies + 6 * self._attention(pairs)

    def _attention(self, pairs: float) -> float:
        return 2 * self.layers * self.query_width * pairs


@dataclass(frozen=True, slots=True)
class Iteration:
    """Seconds of the parts of one iteration, and the amount of computation."""

    rollout: float
    exchange: float
    """Time until each process has the sequences of all processes, including the wait for the slowest."""
    train: float
    update: float
    """Time until the sampler uses the trained adapter."""
    checkpoint: float
    """Time until the checkpoint is safe from a power cut."""
    useful: float
    """Floating-point operations of the training (Shape.training)."""
    prefilled: int
    """Tokens computed by prefill."""
    sampled: int
    mismatch: float
    """Schulman's k3 estimate of KL(sampler || trainer) per token, before the step."""
    computed: int
    """Tokens in the training batches, counting shared ones once."""
    batches: int

    @property
    def seconds(self) -> float:
        return self.rollout + self.exchange + self.train + self.update + self.checkpoint


@contextmanager
def timed() -> Iterator[list[float]]:
    """Time a block, including its GPU work; the yielded list holds its seconds once it is done."""
    started = now()
    result: list[float] = []
    yield result
    result.append(now() - started)


def now() -> float:
    """Wait for the GPUs to finish, then return the clock in seconds."""
    for device in _gpus():
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _gpus() -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def reset_peak() -> None:
    """Reset the peak memory statistics."""
    for device in _gpus():
        torch.cuda.reset_peak_memory_stats(device)


def peak_gb() -> float:
    """Return the peak memory of the fullest GPU in GB."""
    return max(torch.cuda.max_memory_allocated(device) for device in _gpus()) / 1e9


def random_model(config: PreTrainedConfig, *, in_fp8: bool) -> Any:
    """Build a random model in bfloat16, on as many GPUs as it needs and with matrices joined like the engine's.

    With `in_fp8` its layers' matrices are in 8 bits.
    """
    from learnloop_service.training.engine.memory import release_reserved
    from learnloop_service.training.engine.trainer.pretrained import USUAL_RANKS
    from learnloop_service.training.engine.weights.joined import JoinedModel
    from learnloop_service.training.engine.weights.stages import devices_needed, stages_of

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    devices = devices_needed(2 * model.num_parameters(), _gpus())
    body = model.model
    with devices[0]:
        body.rotary_emb = type(body.rotary_emb)(config)
    for stage in stages_of(len(body.layers), devices):
        for number in stage.layers:
            body.layers[number].to_empty(device=stage.device)
    body.embed_tokens.to_empty(device=devices[0])
    for part in (body.norm, model.lm_head):
        part.to_empty(device=devices[-1])
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, config.initializer_range)
    model.joined = JoinedModel(model, devices, torch.bfloat16, ranks=USUAL_RANKS, share=True, in_fp8=in_fp8)
    release_reserved()  # rounding needed it; libraries load their kernels outside of torch's reserve
    return model


def prompts(seed: int) -> list[list[int]]:
    """Return one random prompt per group; all share their first 900 tokens."""
    draw = np.random.default_rng(seed)
    shared = draw.integers(0, 1000, SHARED_PROMPT).tolist()
    return [shared + draw.integers(0, 1000, OWN_PROMPT).tolist() for _ in range(GROUPS)]


def tool_result(seed: int, rollout: int, turn: int) -> list[int]:
    """Return random tokens, always the same for one rollout's turn."""
    tokens: list[int] = np.random.default_rng((seed, rollout, turn)).integers(0, 1000, TOOL_RESULT).tolist()
    return tokens


class Ours:
    """The engine's parts on one model."""

    def __init__(
        self,
        name: str,
        rank: int = 0,
        gpus: int = 1,
        meet: str = "",
        *,
        fp8_training: bool = False,
        uneven: bool = False,
    ) -> None:
        """Set up one of `gpus` processes that have a GPU each and meet through files in the directory `meet`."""
        from learnloop_service.training.engine.sampling.sampler import Sampler
        from learnloop_service.training.engine.trainer.policy import Policy
        from learnloop_service.training.engine.trainer.pretrained import fresh_adapter
        from learnloop_service.training.engine.weights.flash_attention import use_newest
        from learnloop_service.training.engine.weights.weights import snapshot
        from learnloop_service.training.tuning import Tuning

        torch.manual_seed(0)
        self.flash_attention = use_newest()
        base = random_model(MODELS[name](), in_fp8=fp8_training)
        tuning = Tuning("lora")
        adapted: Any = fresh_adapter(base, tuning).eval()
        self.policy = Policy(adapted, tuning, Path)
        self.weights: Any = snapshot(self.policy.model)
        self.sampler = Sampler()
        self.sampler.set_weights("policy", self.weights)
        self.shape = Shape.of(base.config)
        self._rank, self._gpus, self._uneven = rank, gpus, uneven
        self._store: Any = None
        if gpus > 1:
            from torch._C._distributed_c10d import FileStore

            from learnloop_service.training.engine.workers.link import TrainingGroup
            from learnloop_service.training.engine.workers.trainers import Trainers

            group = TrainingGroup(rank, gpus, "127.0.0.1", f"file://{meet}/trainers")
            self.policy.peers = Trainers(group, self.policy.device)
            self._store = FileStore(f"{meet}/rollouts", gpus)

    def _exchanged(self, seed: int, items: list[Any]) -> list[Any]:
        """Return the sequences of all processes in the same order everywhere."""
        if self._store is None:
            return items
        self._store.set(f"{seed}/{self._rank}", pickle.dumps(items))
        sequences = [item for rank in range(self._gpus) for item in pickle.loads(self._store.get(f"{seed}/{rank}"))]
        return sorted(sequences, key=lambda item: item.ids)

    def iteration(self, seed: int) -> Iteration:
        from learnloop_service.training.engine.trainer.packed_batches import packed_batches

        with timed() as rollout:
            items, prefilled = self._rollouts(seed)
        with timed() as exchange:
            items = self._exchanged(seed, items)
        with timed() as train:
            metrics = self._step(items)
        with timed() as update:
            self.weights.update(self.policy.model)
            self.sampler.rename("policy", "policy")
        checkpoint = self._checkpoint()
        limit = self.policy.batch_tokens(None)
        ids, chosen = [item.ids for item in items], [item.trained for item in items]
        batches = list(packed_batches(ids, chosen, limit, torch.device("cpu"), stems=True))
        return Iteration(
            rollout[0],
            exchange[0],
            train[0],
            update[0],
            checkpoint[0],
            self.shape.training(*distinct([item.ids for item in items])),
            prefilled,
            sum(len(item.trained) for item in items),
            metrics["kl_div"],
            sum(len(b.tokens) for b in batches),
            len(batches),
        )

    def long_contexts(self) -> dict[str, float]:
        """Measure two turns of a few long conversations and a training step on them.

        Returns seconds, prefilled tokens, peak memory, and whether training recomputes activations.
        """
        from learnloop_service.training.engine.trainer.trajectories import TrainSequence

        draw = np.random.default_rng(0)
        conversations = [draw.integers(0, 1000, LONG_PROMPT).tolist() for _ in range(LONG_PROMPTS)]
        trained: list[int] = []
        prefilled, seconds = [], []
        logprobs: list[list[float]] = [[] for _ in conversations]
        for _ in range(2):
            with timed() as turn:
                samples = self._replies(conversations)
            seconds += turn
            prefilled.append(sum(sample.prompt_tokens - sample.cached_tokens for sample in samples))
            trained += range(len(conversations[0]), len(conversations[0]) + REPLY)
            for number, sample in enumerate(samples):
                conversations[number] += sample.ids + draw.integers(0, 1000, TOOL_RESULT).tolist()
                logprobs[number] += sample.logprobs
        items = [
            TrainSequence(tuple(ids), tuple(trained), tuple(of_one), (-1.0) ** number, 1.0)
            for number, (ids, of_one) in enumerate(zip(conversations, logprobs, strict=True))
        ]
        with timed() as train:
            self._step(items)
        return {
            "first_turn_s": seconds[0],
            "second_turn_s": seconds[1],
            "second_turn_prefilled": prefilled[1],
            "train_s": train[0],
            "recomputes": float(self.policy.recomputing),
            "peak_gb": peak_gb(),
        }

    def _step(self, items: list[Any]) -> dict[str, float]:
        from learnloop_service.training.engine.engine import finish
        from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
        from learnloop_service.training.engine.trainer.grpo_step import grpo_step

        self._make_room()
        return finish(grpo_step(self.policy, items, TrainOptions(learning_rate=1e-5), micro_batch_tokens=None))

    def _replies(self, prompts: list[list[int]]) -> list[Any]:
        from learnloop_service.training.engine.sampling.requests import SampleRequest

        samples: dict[int, Any] = {}
        for number, ids in enumerate(prompts):
            self.sampler.submit(SampleRequest(tuple(ids), "policy", REPLY), None, partial(samples.__setitem__, number))
        while self.sampler.busy:
            self.sampler.step()
        for sample in samples.values():
            if isinstance(sample, Exception):
                raise sample
        return [samples[number] for number in range(len(prompts))]

    def _checkpoint(self) -> list[float]:
        """Return the seconds that one of the processes needs to write a checkpoint, as a list of one number."""
        from learnloop_service.training.engine.engine import finish
        from learnloop_service.training.engine.registry import checkpoints

        with tempfile.TemporaryDirectory() as directory:
            manifest = checkpoints.Manifest(1, "benchmark/policy", "random")
            with timed() as seconds:
                if self.policy.peers.writes:
                    checkpoints.write(Path(directory), manifest, self.policy.save)
                finish(self.policy.peers.compare(manifest.step, None))  # the other processes wait for the write
            return seconds

    def _make_room(self) -> None:
        from learnloop_service.training.engine.engine import TRAINING_SHARE
        from learnloop_service.training.engine.memory import free_bytes

        if any(free_bytes(gpu) < TRAINING_SHARE * torch.cuda.mem_get_info(gpu)[1] for gpu in _gpus()):
            self.sampler.release_idle()

    def _rollouts(self, seed: int) -> tuple[list[Any], int]:
        from learnloop_service.training.engine.sampling.requests import SampleRequest
        from learnloop_service.training.engine.trainer.trajectories import TrainSequence

        items: list[Any] = []
        prefilled = 0

        def submit(rollout: int, turn: int, ids: list[int], trained: list[int], logprobs: list[float]) -> None:
            length = reply_tokens(seed, rollout, turn) if self._uneven else REPLY
            request = SampleRequest(tuple(ids), "policy", length, seed=seed * 1000 + rollout * 10 + turn)
            self.sampler.submit(request, None, partial(on_sample, rollout, turn, ids, trained, logprobs))

        def on_sample(
            rollout: int, turn: int, ids: list[int], trained: list[int], logprobs: list[float], sample: Any
        ) -> None:
            nonlocal prefilled
            if isinstance(sample, Exception):
                raise sample
            prefilled += sample.prompt_tokens - sample.cached_tokens
            trained = [*trained, *range(len(ids), len(ids) + len(sample.ids))]
            ids, logprobs = ids + sample.ids, logprobs + sample.logprobs
            if turn + 1 < TURNS:
                return submit(rollout, turn + 1, ids + tool_result(seed, rollout, turn), trained, logprobs)
            advantage = (-1.5, -0.5, 0.5, 1.5)[rollout % ROLLOUTS]
            items.append(TrainSequence(tuple(ids), tuple(trained), tuple(logprobs), advantage, 1.0))
            return None

        for group, prompt in list(enumerate(prompts(seed)))[self._rank :: self._gpus]:
            for member in range(ROLLOUTS):
                submit(group * ROLLOUTS + member, 0, prompt, [], [])
        while self.sampler.busy:
            self.sampler.step()
        return items, prefilled


def reply_tokens(seed: int, rollout: int, turn: int) -> int:
    """Return a reply's number of tokens where these are uneven: REPLY on average, from a third to five thirds of it."""
    return int(np.random.default_rng((seed, rollout, turn, REPLY)).integers(REPLY // 3, 2 * REPLY - REPLY // 3 + 1))


def distinct(sequences: list[tuple[int, ...]]) -> tuple[int, float]:
    """Count tokens with a distinct prefix, and the pairs of them that attend to one another."""
    tokens, pairs, before = 0, 0.0, np.empty(0, dtype=np.int64)
    for sequence in sorted(sequences):
        ids = np.array(sequence)
        width = min(len(ids), len(before))
        differ = np.flatnonzero(ids[:width] != before[:width])
        shared = int(differ[0]) if len(differ) else width
        tokens += len(ids) - shared
        pairs += (len(ids) ** 2 - shared**2) / 2
        before = ids
    return tokens, pairs


def measure(ours: Ours, iterations: int, gpus: int) -> dict[str, float]:
    """Return the figures of the median iteration, after an uncounted one, as seen by one of `gpus` processes."""
    if not iterations:
        return ours.long_contexts()
    ours.iteration(0)
    reset_peak()
    measured = [ours.iteration(seed) for seed in range(1, iterations + 1)]
    best = sorted(measured, key=lambda iteration: iteration.seconds)[len(measured) // 2]
    whole = SHARED_PROMPT + OWN_PROMPT + TURNS * REPLY + (TURNS - 1) * TOOL_RESULT
    return {
        "flash_attention": ours.flash_attention,
        "iteration_s": best.seconds,
        "rollout_s": best.rollout,
        "exchange_s": best.exchange,
        "train_s": best.train,
        "update_s": best.update,
        "checkpoint_s": best.checkpoint,
        "limit_s": ours.shape.limit(),
        "sampled_tokens_per_s": best.sampled / best.rollout,
        "trained_tokens_per_s": GROUPS * ROLLOUTS * whole / best.train,
        "useful_mfu_of_790": best.useful / best.train / PEAK_FLOPS / gpus,
        "useful_mfu_of_989": best.useful / best.train / DATASHEET_FLOPS / gpus,
        "mismatch_kl": best.mismatch,
        "computed_tokens": best.computed,
        "batches": best.batches,
        "prefilled_tokens": best.prefilled,
        "peak_gb": peak_gb(),
        "recomputes": float(ours.policy.recomputing),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.gpu", description=__doc__)
    parser.add_argument("--models", default="0.6B,1.7B,8B,14B", help="some of them, with commas")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--long", default="", help="models that do two turns of 4 conversations of 30,000 tokens too")
    parser.add_argument("--peer", default="", help="models for which TRL does the same, and vLLM the rollouts")
    parser.add_argument(
        "--gpus", type=int, default=1, help="processes with a GPU each, which share out rollouts and the training step"
    )
    parser.add_argument(
        "--uneven", action="store_true", help="replies of different lengths, so that turns end one after another"
    )
    parser.add_argument(
        "--training-weights",
        choices=("exact", "fp8"),
        default="exact",
        help="fp8: the base is trained over, and sampled, in 8 bits",
    )
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--meet", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("this benchmark needs a GPU\n")
        return 1
    if options.one:
        ours = Ours(
            options.one,
            options.rank,
            options.gpus,
            options.meet,
            fp8_training=options.training_weights == "fp8",
            uneven=options.uneven,
        )
        print(json.dumps(measure(ours, options.iterations, options.gpus)))
        return 0
    failed = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; random weights, forced lengths", flush=True)
    for name in options.models.split(","):
        weights = ("--training-weights", options.training_weights, *(["--uneven"] if options.uneven else []))
        figures = _together(name, options.iterations, options.gpus, *weights)
        print(f"{name:5} ours {json.dumps({key: round(value, 4) for key, value in figures.items()})}", flush=True)
        if name in options.long.split(","):
            long = _together(name, 0, 1, *weights)
            print(f"{name:5} long {json.dumps({key: round(value, 4) for key, value in long.items()})}", flush=True)
        if name in options.peer.split(","):
            for label, *arguments in PEERS:
                try:
                    peer = {key: round(value, 4) for key, value in _alone(*arguments, name).items()}
                except SystemExit as error:  # a failing peer does not stop the others
                    sys.stderr.write(f"{error}\n")
                    failed = True
                    continue
                print(f"{name:5} {label} {json.dumps(peer)}", flush=True)
    return int(failed)


def _together(name: str, iterations: int, gpus: int, *weights: str) -> dict[str, float]:
    """Measure in `gpus` processes; return the figures of the first."""
    one = ("benchmarks.engine.gpu", "--one", name, "--iterations", str(iterations), *weights)
    if gpus == 1:
        return _alone(*one)
    with tempfile.TemporaryDirectory() as meet, ThreadPoolExecutor(gpus) as threads:
        several = ("--gpus", str(gpus), "--meet", meet)
        running = [
            threads.submit(_alone, *one, *several, "--rank", str(rank), CUDA_VISIBLE_DEVICES=str(rank))
            for rank in range(gpus)
        ]
        figures = [future.result() for future in running]
    return figures[0]


def _alone(*arguments: str, **environment: str) -> dict[str, float]:
    """Run a module in a separate process and return the JSON it prints; its memory and patches end with it."""
    with tempfile.TemporaryFile("w+") as errors:
        finished = subprocess.run(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # As in the engine: the cache and the activations of training can reuse each other's memory.
            env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ, **environment},
        )
        errors.seek(0)
        if finished.returncode:
            raise SystemExit(f"{' '.join(arguments)}:\n{errors.read()[-4000:]}")
        sys.stderr.write("".join(line for line in errors if "out of memory" in line))
    # The last line of JSON, because vLLM can log while it ends.
    figures: dict[str, float] = json.loads(
        next(line for line in reversed(finished.stdout.splitlines()) if line[:1] == "{")
    )
    return figures


if __name__ == "__main__":
    sys.exit(main())

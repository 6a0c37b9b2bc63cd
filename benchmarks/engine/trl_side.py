"""TRL's side of `benchmarks.engine.trl_rollouts`, in a separate process.

ART's changes to transformers would break TRL in the same process. TRL samples with `transformers.generate` (vLLM needs
a GPU), and gets the tools of an `environment_factory`, as its documentation recommends for agents. TRL's loop continues
while a reply calls a tool, so the reward function handles the final answer, which costs TRL no turn. Precision,
checkpointing and micro-batch are the fastest on a CPU: fp32, none, 16 trajectories (with 64 an iteration takes almost
twice as long).
"""

import contextlib
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from learnloop_service.environment.base import Scenario, ToolError
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.tools import ANSWER, TOOLS
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.engine.__main__ import TINY_BASE
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.types import RunConfig

ENVIRONMENT = SyntheticEmailSearch()
JUDGE = ReferenceJudge()


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of one side. `rollout_s` is the part of `seconds` until every rollout is done."""

    seconds: float
    rollout_s: float
    tokens: int
    """Sampled tokens."""
    turns: float
    """Mean over the rollouts."""
    reward: float
    """Mean over the rollouts."""


class InboxTools:
    """TRL's environment around one of our episodes.

    TRL turns public methods into tools, and their docstrings into schemas.
    """

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._scenarios = scenarios

    def reset(self, number: int, **_: Any) -> None:
        self._episode = ENVIRONMENT.episode(self._scenarios[number])
        self._malformed = False

    async def search_inbox(
        self, keywords: list[str], sender: str = "", recipient: str = "", sent_after: str = "", sent_before: str = ""
    ) -> str:
        """
        Find mails that hold all the keywords.

        Args:
            keywords: The keywords.
            sender: Part of the sender.
            recipient: Part of a recipient.
            sent_after: A date.
            sent_before: A date.
        """
        filters = {"sender": sender, "recipient": recipient, "sent_after": sent_after, "sent_before": sent_before}
        return await self._call("search_inbox", {"keywords": keywords, **filters})

    async def read_email(self, email_id: str) -> str:
        """
        Read one mail by its id.

        Args:
            email_id: The id.
        """
        return await self._call("read_email", {"email_id": email_id})

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            return (await self._episode.call(name, arguments)).content
        except ToolError:
            self._malformed = True
            raise

    async def _reward(self, tokenizer: ChatTokenizer, messages: Sequence[Mapping[str, Any]]) -> float:
        """End the episode with the last message, which called no tool of TRL's loop unless turns ran out."""
        last = messages[-1]
        calls = tokenizer.parse(last.get("content") or "").tool_calls
        if self._malformed or not (calls or last.get("tool_calls") or last["role"] == "tool"):
            self._episode.end("malformed", "")
        elif not calls:
            self._episode.end("out_of_turns", "")
        else:
            try:
                await self._episode.call(calls[0].name, json.loads(calls[0].arguments))
            except ToolError as error:
                self._episode.end("malformed", str(error))
        outcome = self._episode.outcome()
        [score] = (await JUDGE.judge(self._episode.scenario, [Candidate("", outcome, messages)])).scores
        if score.value is None:
            raise RuntimeError(score.explanation)
        return sum(ENVIRONMENT.reward(outcome, score.value).values())


class Trainer(TrainerCallback):
    """GRPOTrainer on our task. Each iteration waits for a message and answers it with its figures."""

    def __init__(
        self, turn: "Connection[Iteration, None]", config: RunConfig, micro_batch: int, directory: str
    ) -> None:
        """Set up the trainer; `micro_batch` is the number of trajectories in one forward and backward pass."""
        self._turn = turn
        self._started = self._rolled_out = self._ended = self._turns = self._reward = 0.0
        self._rollouts = config.groups_per_iteration * config.rollouts_per_group
        self._chat = ChatTokenizer(TINY_BASE)
        self._scenarios = ENVIRONMENT.scenarios("train", config.iterations * config.groups_per_iteration, config.seed)
        trl: Any = importlib.import_module("trl")
        datasets: Any = importlib.import_module("datasets")
        self._trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32),
            processing_class=_tokenizer(),
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": _prompt(scenario), "number": number} for number, scenario in enumerate(self._scenarios)]
            ),
            environment_factory=lambda: InboxTools(self._scenarios),
            reward_funcs=[self._rewards],
            callbacks=[self],
            args=trl.GRPOConfig(
                output_dir=directory,
                max_steps=config.iterations,
                num_generations=config.rollouts_per_group,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=self._rollouts // micro_batch,
                max_tool_calling_iterations=ENVIRONMENT.default_max_turns - 1,
                max_completion_length=1536,
                generation_kwargs={"max_new_tokens": config.max_completion_tokens},
                learning_rate=config.learning_rate,
                lr_scheduler_type="constant",
                adam_beta2=0.95,
                loss_type="cispo",
                epsilon_high=4.0,
                bf16=False,
                gradient_checkpointing=False,
                use_cpu=True,
                shuffle_dataset=False,
                seed=config.seed,
                save_strategy="no",
                logging_steps=1,
                report_to="none",
                disable_tqdm=True,
            ),
        )

    def train(self) -> None:
        """Train all iterations. Raises RuntimeError if the two sides have different prompts."""
        prompt = _prompt(self._scenarios[0])
        ours = self._chat.prompt(prompt, [tool.openai() for tool in TOOLS])
        theirs = self._trainer.processing_class.apply_chat_template(
            prompt, add_generation_prompt=True, return_dict=False
        )
        if ours != theirs:
            raise RuntimeError("the two sides show the model different prompts")
        self._trainer.train()

    async def _rewards(self, environments: Any, completions: Any, **_: Any) -> list[float]:
        self._rolled_out = time.perf_counter()
        rewards = [
            await environment._reward(self._chat, messages)
            for environment, messages in zip(environments, completions, strict=True)
        ]
        self._turns = statistics.fmean(
            sum(message["role"] == "assistant" for message in messages) for messages in completions
        )
        self._reward = statistics.fmean(rewards)
        return rewards

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._turn.recv()
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ended = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "completions/mean_length" not in logs:
            return  # the summary at the end
        self._turn.send(
            Iteration(
                seconds=self._ended - self._started,
                rollout_s=self._rolled_out - self._started,
                tokens=round(logs["completions/mean_length"] * self._rollouts),
                turns=self._turns,
                reward=self._reward,
            )
        )


def _prompt(scenario: Scenario) -> list[dict[str, Any]]:
    return ENVIRONMENT.episode(scenario).messages()


def _tokenizer() -> Any:
    """Return the base model's tokenizer, adapted to TRL.

    Its chat template has our tools in our order, and its response template tells TRL's loop which replies are calls.
    """
    tokenizer = AutoTokenizer.from_pretrained(TINY_BASE)
    tools = json.dumps([tool.openai() for tool in TOOLS])
    tokenizer.chat_template = tokenizer.chat_template.replace("tools or []", tools)
    names = "|".join(tool.name for tool in TOOLS if tool is not ANSWER)
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open_pattern": rf'<tool_call>\s*(?=\{{"name": "(?:{names})")',
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    }
    return tokenizer


def run(turn: "Connection[Iteration, None]", config: RunConfig, micro_batch: int, threads: int) -> None:
    """Run the process: train one iteration for each message."""
    torch.set_num_threads(threads)
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as directory,
        turn,
        contextlib.redirect_stdout(sys.stderr),  # TRL prints its logs
    ):
        Trainer(turn, config, micro_batch, directory).train()

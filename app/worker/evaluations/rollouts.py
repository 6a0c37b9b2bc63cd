"""The work of comparisons, trials and what-ifs: rollouts of all models in the same scenarios, and the verdicts on them.

All models attempt a scenario at about the same time, and its rollouts are judged together, so that a judge can compare
them. What is saved already is neither made nor judged again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from ulid import ULID

from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.claims.lease import LeaseLost
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.domain.stored_evaluation import (
    GateEvaluation,
    Slot,
    StoredEvaluation,
    TrialEvaluation,
    WhatIf,
    WhatIfEvaluation,
)
from learnloop_service.app.evaluations.recorded import recorded_rollouts
from learnloop_service.app.evaluations.report import differences, report_of, why_no_figures
from learnloop_service.app.evaluations.what_ifs import values_of, what_if_report
from learnloop_service.app.runs.recorded_rollouts import recorded_rollout
from learnloop_service.app.runs.resume_point import state_after
from learnloop_service.app.runs.stored_rollouts import scenario_of, stored_rollout
from learnloop_service.app.worker.evaluations.state import OpenedEvaluation
from learnloop_service.app.worker.measures import count_judge_calls, count_rollouts
from learnloop_service.app.worker.save_iteration import rollout_row, verdict_row
from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.base import Judge
from learnloop_service.training.backends.base import BackendUnavailable
from learnloop_service.training.loop.rollout_tasks import seed_of
from learnloop_service.training.loop.task_errors import first_of_several
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.agents.remote import RolloutName
from learnloop_service.training.rollout.chat import Chat
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.fork import Fork
from learnloop_service.training.rollout.rollout import Player, RolloutLimits, rollout
from learnloop_service.training.scoring import assign_rewards, judge_group
from learnloop_service.training.statistics.gate import GateDecision, GateRule, GateVerdict, verdict
from learnloop_service.training.statistics.sequential import Decision, PairEvidence, Rule, evidence
from learnloop_service.training.statistics.turn_values import next_probe
from learnloop_service.training.types import FailureKind, Rollout

Decided = TypeVar("Decided")


@dataclass(frozen=True)
class ComparisonWork:
    """A comparison in progress, on its own event loop."""

    request: StoredEvaluation
    opened: OpenedEvaluation
    judge: Judge
    chats: Sequence[Chat]
    players: Sequence[Player | None]
    """The player that replaces the built-in loop, if any, for each model."""
    prompts: Sequence[Prompt | None]
    """The prompt of each model; None for the environment's texts."""
    rollout_kind: ClassVar[str] = "evaluation"

    async def report(self) -> dict[str, Json]:
        """Make and judge everything that is not saved yet, and return the report."""
        await self._scenarios(0, self.request.scenarios, await self._rows())
        return await self._figures(await self._rows())

    async def _drawn(self, start: int, end: int) -> Sequence[Scenario]:
        """Return the scenarios from number `start` to before `end`."""
        request, environment = self.request, self.opened.environment
        return await off_loop(environment, environment.scenarios, request.split, end - start, request.seed, start)

    def _seed(self, slot: Slot) -> int:
        """Return the seed of a rollout: the same for all models, so that only the models differ."""
        return seed_of(self.request.seed, "evaluation", self.request.split, slot.scenario, slot.sample)

    def _fork(self, slot: Slot) -> Fork | None:
        return None

    async def _rows(self) -> dict[Slot, Any]:
        state = self.opened.state
        return await state.query(lambda: state.store.rows(state.job.id))

    async def _messages(self, slots: Sequence[Slot]) -> dict[str, list[Json]]:
        state = self.opened.state
        return await state.query(lambda: state.store.messages(state.job.id, slots))

    async def _figures(self, rows: Mapping[Slot, Any]) -> dict[str, Json]:
        """Return the report on the models."""
        costs = []
        for model, price in enumerate(self.opened.state.prices):
            model_rows = [row for slot, row in rows.items() if slot.model == model]
            tokens = sum(row.prompt_tokens for row in model_rows), sum(row.completion_tokens for row in model_rows)
            costs.append(None if price is None else price.of(*tokens))
        return await asyncio.to_thread(report_of, self.request, list(rows.values()), costs)

    async def _scenarios(self, start: int, end: int, saved: Mapping[Slot, Any]) -> None:
        """Make and judge the scenarios from number `start` to before `end`. No task is left running."""
        scenarios = await self._drawn(start, end)
        saved = await self._with_copies(dict(enumerate(scenarios, start)), saved)
        with first_of_several(LeaseLost):
            async with asyncio.TaskGroup() as group:
                for number, scenario in enumerate(scenarios, start):
                    group.create_task(self._scenario(number, scenario, saved))
                    await asyncio.sleep(0)  # lets the first rollouts start before all tasks are created

    async def _with_copies(self, scenarios: Mapping[int, Scenario], saved: Mapping[Slot, Any]) -> Mapping[Slot, Any]:
        """Copy the recorded rollouts of the scenarios that serve again, and return all that is saved."""
        state, copies = self.opened.state, dict[Slot, str]()
        for model, contestant in enumerate(self.request.models):
            recorded = await state.query(partial(recorded_rollouts, state.store, state.job, contestant))
            for (number, sample), row in recorded.items():
                slot = Slot(model, number, sample)
                serves = number in scenarios and sample < self.request.samples and slot not in saved
                if serves and scenario_of(row) == scenarios[number]:
                    copies[slot] = row.id
        if not copies:
            return saved
        await shielded(state.query(lambda: state.store.keep_copies(state.lease, copies)))
        state.saved(len(copies))
        return await self._rows()

    async def _decided(self, every: int, decide: Callable[[list[float], int], tuple[Decided, bool]]) -> Decided | None:
        """Make and judge the scenarios in batches until it is decided, and return the last verdict; None if one of the
        models has no figures, because that is no evidence for the other one. `decide` is given the differences of the
        second model's success from the first one's and the number of scenarios, and also says whether to go on."""
        request, saved, decided = self.request, await self._rows(), None
        for start in range(0, request.scenarios, every):
            end = min(start + every, request.scenarios)
            await self._scenarios(start, end, saved)
            # Only the scenarios up to this look, so that a worker that takes over sees the same evidence at each look.
            rows = {slot: row for slot, row in (await self._rows()).items() if slot.scenario < end}
            if any(why_no_figures(model, rows) for model in range(len(request.models))):
                return None
            decided, goes_on = decide(differences(request, rows), end)
            if not goes_on:
                break
        return decided

    async def _scenario(self, number: int, scenario: Scenario, saved: Mapping[Slot, Any]) -> None:
        models, samples = range(len(self.request.models)), range(self.request.samples)
        slots = [Slot(model, number, sample) for model in models for sample in samples]
        saved_rows = {slot: saved[slot] for slot in slots if slot in saved}
        if len(saved_rows) == len(slots) and all(row.score_explanation is not None for row in saved_rows.values()):
            return
        async with asyncio.TaskGroup() as group:
            making = {
                slot: group.create_task(self._rollout(slot, scenario)) for slot in slots if slot not in saved_rows
            }
        again = await self._messages(list(saved_rows)) if saved_rows else {}
        rollouts = [
            stored_rollout(scenario, saved_rows[slot], again[saved_rows[slot].id])
            if slot in saved_rows
            else making[slot].result()
            for slot in slots
        ]
        state, environment = self.opened.state, self.opened.environment
        async with self.opened.budget.judging() as judged:
            judgement = await judge_group(self.judge, scenario, rollouts)
            judged(judgement)
        scored = (await off_loop(environment, assign_rewards, environment, scenario, rollouts, judgement)).rollouts
        verdicts = [
            {"id": rollout.rollout.id, "why_no_success": rollout.why_no_success} | verdict_row(rollout)
            for rollout in scored
        ]
        await shielded(state.query(lambda: state.store.keep_verdicts(state.lease, verdicts, judgement.calls)))
        state.saved()
        count_judge_calls(judgement.calls)

    async def _rollout(self, slot: Slot, scenario: Scenario) -> Rollout:
        """Make a rollout and save it.

        Raises BackendUnavailable if the rollout gave up on an unavailable endpoint, because that says nothing about the
        model.
        """
        request, opened, chat = self.request, self.opened, self.chats[slot.model]
        limits = RolloutLimits(
            request.max_turns, request.max_completion_tokens, request.rollout_timeout_s, request.temperature
        )
        async with opened.gate, opened.budget.rollout(slot.model, scenario) as reservation:
            new_rollout = await rollout(
                opened.environment,
                scenario,
                chat,
                limits,
                id=str(ULID()),
                seed=self._seed(slot),
                reservation=reservation,
                agent=self.players[slot.model],
                prompt=self.prompts[slot.model],
                fork=self._fork(slot),
                name=RolloutName(0, str(slot)),
                now=lambda: opened.clock.now().timestamp(),
            )
            opened.budget.saw(new_rollout)
        if chat.remembers and new_rollout.failure is not None and new_rollout.failure.kind is FailureKind.BACKEND_AWAY:
            raise BackendUnavailable(new_rollout.error)
        state, contestant = opened.state, request.models[slot.model]
        row = rollout_row(new_rollout) | {
            "evaluation_id": state.job.id,
            "slot": str(slot),
            "project": state.job.project,
            "kind": self.rollout_kind,
            "mode": "sampled" if request.temperature else "greedy",
            "model": contestant.model,
            "step": contestant.step,
            "prompt_sha256": contestant.prompt and contestant.prompt.sha256,
            "score_parts": {},
            "reward_parts": {},
        }
        await shielded(state.query(lambda: state.store.keep_rollout(state.lease, row)))
        count_rollouts(self.rollout_kind, [new_rollout])
        state.saved(1)
        return new_rollout


@dataclass(frozen=True)
class TrialWork(ComparisonWork):
    """A trial in progress."""

    request: TrialEvaluation

    async def report(self) -> dict[str, Json]:
        """Make and judge scenarios until the trial is decided, and return the report."""
        rule = Rule(self.request.trial.alpha, self.request.trial.margin, self.request.trial.look_every)

        def decide(gains: list[float], _: int) -> tuple[PairEvidence, bool]:
            pairs = evidence(gains, rule)
            return pairs, pairs.decision(rule) is Decision.CONTINUE

        pairs = await self._decided(rule.look_every, decide)
        report = await self._figures(await self._rows())
        return report if pairs is None else report | {"trial": _verdict(pairs, rule)}


@dataclass(frozen=True)
class GateWork(ComparisonWork):
    """A comparison in progress that decides whether the second model is better."""

    request: GateEvaluation

    async def report(self) -> dict[str, Json]:
        """Make and judge scenarios until it is decided, and return the report."""
        gate, most = self.request.gate, self.request.scenarios
        rule = GateRule(gate.error, gate.exact, gate.look_every)

        def decide(gains: list[float], count: int) -> tuple[GateVerdict, bool]:
            decided = verdict(gains, rule, count, most)
            return decided, decided.decision is GateDecision.CONTINUE

        decided = await self._decided(rule.look_every, decide)
        if gate.whole and decided is not None and decided.decision is GateDecision.BETTER:
            await self._scenarios(0, most, await self._rows())
        report = await self._figures(await self._rows())
        return report if decided is None else report | {"gate": asdict(decided) | {"error": rule.error}}


@dataclass(frozen=True)
class ForkedRollout:
    """The recorded rollout of a what-if, and its forks by the number of the turn in the request."""

    row: Trajectory
    scenario: Scenario
    forks: Sequence[Fork]
    state: Mapping[str, Any] | None

    @classmethod
    async def read(cls, database: Database, what_if: WhatIf) -> "ForkedRollout":
        """Read the rollout."""
        async with database() as tx:
            row = await tx.get(Trajectory, what_if.trajectory_id)
        assert row is not None  # deleting it deletes the what-if
        recorded = await recorded_rollout(database, row)
        forks = [Fork.of(recorded.conversation, turn, what_if.edit, what_if.earlier) for turn in what_if.turns]
        return cls(row, recorded.scenario, forks, await state_after(database, what_if.state))


@dataclass(frozen=True)
class WhatIfWork(ComparisonWork):
    """A what-if in progress. Each turn is a scenario."""

    request: WhatIfEvaluation
    forked: ForkedRollout
    rollout_kind = "what_if"

    async def report(self) -> dict[str, Json]:
        """Make and judge the continuations that are not saved yet, and return the report."""
        if self.request.what_if.search == "bisect":
            await self._bisect()
        else:
            await self._scenarios(0, self.request.scenarios, await self._rows())
        rows = await self._rows()
        messages = await self._messages(list(rows))
        report = await asyncio.to_thread(what_if_report, self.request, self.forked.row, rows, messages)
        return await self._figures(rows) | {"what_if": report}

    async def _drawn(self, start: int, end: int) -> Sequence[Scenario]:
        return [self.forked.scenario] * (end - start)

    def _seed(self, slot: Slot) -> int:
        what_if = self.request.what_if
        if what_if.own_seed is not None:
            return what_if.own_seed
        return seed_of(self.request.seed, "what_if", what_if.turns[slot.scenario], slot.sample)

    def _fork(self, slot: Slot) -> Fork:
        return self.forked.forks[slot.scenario]

    async def _bisect(self) -> None:
        """Continue from one turn after the other, until the turn that decided the rollout is found."""
        before = None
        # A turn whose continuations could not be judged has no value. It is asked for again, which ends the search.
        while (number := self._next_turn(saved := await self._rows())) not in (None, before):
            await self._scenarios(number, number + 1, saved)
            before = number

    def _next_turn(self, rows: Mapping[Slot, Any]) -> int | None:
        """Return the number of the next turn to sample continuations before; None at the end of the search."""
        turns = self.request.what_if.turns
        values = values_of((turns[slot.scenario], row) for slot, row in rows.items())
        probe = next_probe(values, len(turns), bool(self.forked.row.success))
        return None if probe is None else turns.index(probe)


def _verdict(pairs: PairEvidence, rule: Rule) -> dict[str, Json]:
    """Return a trial's decision and the evidence for it."""
    decision = pairs.decision(rule)
    return {
        "decision": "undecided" if decision is Decision.CONTINUE else str(decision),
        "pairs": pairs.pairs,
        "log_wealth_better": pairs.better,
        "log_wealth_not_by_margin": pairs.not_by_margin,
        "alpha": rule.alpha,
        "margin": rule.margin,
        "look_every": rule.look_every,
    }

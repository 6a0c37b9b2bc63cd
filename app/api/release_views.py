"""Converts releases to response bodies."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import LIVE, SPLITTING, Arm, ReleaseReason, ReleaseState
from learnloop_service.app.operations.start.release import StartedRelease
from learnloop_service.app.releases import words
from learnloop_service.app.releases.decision import GuardrailEvidence, weigh
from learnloop_service.app.releases.evidence import ReleaseEvidence
from learnloop_service.app.releases.forecast import forecast_of
from learnloop_service.app.releases.outcome_test import weigh_outcomes
from learnloop_service.app.releases.store import ArmFigures, WholeRelease
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.app.schemas.releases import (
    ArmOut,
    EffectOut,
    ForecastOut,
    GuardrailOut,
    ReleaseAccepted,
    ReleaseBrief,
    ReleaseOut,
)
from learnloop_service.training.protocol.model_name import ModelName


def release_brief(row: Release, stable: Promotion) -> ReleaseBrief:
    """Return a release as lists show it."""
    return ReleaseBrief.model_validate(_brief(row, stable))


def release_accepted(started: StartedRelease) -> ReleaseAccepted:
    """Return the response to a request that starts a release."""
    more = {"forecast": _forecast(started.row), "warnings": started.warnings}
    return ReleaseAccepted.model_validate(_brief(started.row, started.stable) | more)


def release_out(whole: WholeRelease) -> ReleaseOut:
    """Return a release with everything that is known about it."""
    row, rules, state = whole.row, ReleaseRules.parse(whole.row.rules), ReleaseState(whole.row.state)
    evidence = ReleaseEvidence.none(rules) if row.evidence is None else ReleaseEvidence.parse(row.evidence)
    outcome = evidence.outcome or weigh_outcomes(rules, {})
    units = sum(figures.units for figures in whole.arms.values())
    # Of the current stage, which can be newer than the evidence of the last look.
    guardrails = {name: weigh(rules, row.stage, name, evidence.cells.get(name, {})) for name in rules.guardrails}
    ends_at = words.ends_at(rules, row.started_at)
    more = ReleaseOut.shown_of(row) | {
        "rules": rules,
        "arms": _arms(whole),
        "guardrails": [_guardrail(name, evidence) for name, evidence in guardrails.items()],
        "next": words.lacks(rules, state, row.stage, whole.met, guardrails, ends_at, row.unit),
        "quality": words.quality(rules, state, evidence.cells, outcome, units, whole.confirmation),
        "effect": EffectOut.of(outcome),
        "confirmation": [EffectOut.of(effect) for effect in whole.confirmation],
        "forecast": _forecast(row),
        "salt": None if state in LIVE else row.salt.hex(),
    }
    return ReleaseOut.model_validate(more | _brief(row, whole.stable))


def _brief(row: Release, stable: Promotion) -> dict[str, Any]:
    state, reason = ReleaseState(row.state), None if row.reason is None else ReleaseReason(row.reason)
    return ReleaseBrief.shown_of(row) | {
        "release_id": row.id,
        "name": str(ModelName(row.project, row.name)),
        "state": state,
        "reason": reason,
        "summary": words.summary(state, reason),
        "candidate": str(ModelName(row.project, row.model_name, row.step)),
        "candidate_prompt": PromptUsed.of_reference(row.prompt),
        "stable": str(ModelName(stable.project, stable.model_name, stable.step)),
        "stable_prompt": PromptUsed.of_reference(stable.prompt),
        "share": row.share if state in SPLITTING else 0.0,
        "stages": len(row.rules["ramp"]),
    }


def _arms(whole: WholeRelease) -> list[ArmOut]:
    row, stable = whole.row, whole.stable
    arms = []
    for arm, served in ((Arm.CANDIDATE, row), (Arm.STABLE, stable)):
        figures, origin = whole.arms.get(arm, ArmFigures()), whole.made[arm]
        arms.append(
            ArmOut(
                arm=arm,
                checkpoint=str(ModelName(row.project, served.model_name, served.step)),
                prompt=PromptUsed.of_reference(served.prompt),
                backend=served.backend,
                run_id=None if origin is None else origin.run_id,
                iteration=None if origin is None else origin.iteration,
                success=None if origin is None else origin.success,
                units=figures.units,
                open_windows=figures.open_windows,
                closed_windows=figures.units - figures.open_windows,
                mean_outcome=figures.mean_outcome,
                late_events=figures.late_events,
            )
        )
    return arms


def _guardrail(name: Guardrail, evidence: GuardrailEvidence) -> GuardrailOut:
    fields: Mapping[str, Any] = asdict(evidence)
    return GuardrailOut.model_validate({"guardrail": name, "means": KINDS[name].called, **fields})


def _forecast(row: Release) -> ForecastOut:
    rules = ReleaseRules.parse(row.rules)
    estimate = forecast_of(rules, row.baseline)
    return ForecastOut.model_validate(asdict(estimate) | {"note": words.forecast_note(rules, estimate, row.unit)})

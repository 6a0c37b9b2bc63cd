"""The evidence of a look: what was counted, and what it says about each guardrail and about outcomes. Rows and events
have it as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from learnloop_service.app.domain.release_rules import Guardrail, ReleaseRules
from learnloop_service.app.releases.counts import CellCounts, cells_json, parse_cells
from learnloop_service.app.releases.decision import Failures, GuardrailEvidence, ReleaseDecision, ReleaseFacts, weigh
from learnloop_service.app.releases.outcome_test import OutcomeEvidence, weigh_outcomes
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.two_arms import ArmMean


@dataclass(frozen=True, slots=True)
class ReleaseEvidence:
    """What a look found. Thresholds are beside the evidence that they are for."""

    look: int
    """Number of the look, from 1."""
    stage: int
    met: int
    """Number of units that met the candidate in this stage."""
    cells: CellCounts
    guardrails: Mapping[Guardrail, GuardrailEvidence]
    failures: Failures
    outcome: OutcomeEvidence | None
    """None for looks of earlier versions, which did not count outcomes."""

    @classmethod
    def of(cls, look: int, facts: ReleaseFacts, decision: ReleaseDecision) -> Self:
        """Return the evidence of a decision."""
        weighed = (decision.guardrails, facts.failures, decision.outcome)
        return cls(look, facts.stage, facts.met, facts.counts, *weighed)

    @classmethod
    def none(cls, rules: ReleaseRules) -> Self:
        """Return the evidence before the first look."""
        guardrails = {name: weigh(rules, 0, name, {}) for name in rules.guardrails}
        return cls(0, 0, 0, {}, guardrails, Failures(), weigh_outcomes(rules, {}))

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Parse the JSON form."""
        outcome = document.get("outcome")
        return cls(
            document["look"],
            document["stage"],
            document["met"],
            parse_cells(document["cells"]),
            {Guardrail(name): _guardrail(guardrail) for name, guardrail in document["guardrails"].items()},
            Failures(**document["failures"]),
            None if outcome is None else OutcomeEvidence(**outcome),
        )

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "look": self.look,
            "stage": self.stage,
            "met": self.met,
            "cells": cells_json(self.cells),
            "guardrails": {str(name): asdict(guardrail) for name, guardrail in self.guardrails.items()},
            "failures": asdict(self.failures),
            "outcome": None if self.outcome is None else asdict(self.outcome),
        }

    def differences(self, rules: ReleaseRules, cells: CellCounts, met: int) -> list[str]:
        """Return what is different if the evidence is computed again from these counts, a sentence each."""
        differences = []
        if cells_json(cells) != cells_json(self.cells):
            differences.append(f"The counts of look {self.look} are not those of the observations.")
        if met != self.met:
            differences.append(f"At look {self.look}, {met} units had met the candidate in the stage, not {self.met}.")
        for name, stored in self.guardrails.items():
            if weigh(rules, self.stage, name, cells.get(name, {})) != stored:
                differences.append(f"The evidence of look {self.look} on {name} does not follow from the counts.")
        if self.outcome is not None and weigh_outcomes(rules, cells) != self.outcome:
            differences.append(f"The evidence of look {self.look} on outcomes does not follow from the units.")
        return differences


def _guardrail(document: Mapping[str, Any]) -> GuardrailEvidence:
    arms = {arm: ArmMean(**document[arm]) for arm in ("candidate", "stable")}
    return GuardrailEvidence(**{**document, **arms})

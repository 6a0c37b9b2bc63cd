"""Writes the dashboard's view of the API, generated from the OpenAPI file.

    python -m scripts.dashboard_types

`api_types.d.ts`, for the type checker and editors: the replies that the dashboard uses and the types inside them. Every
field is required, because the service leaves none out. Git ignores it, and scripts/check_dashboard.py writes it anew.
`api_fields.js`: those settings of a run that `start_fields.js` names, each with its description and default, for the
form that starts one.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from learnloop_service.app.http.typescript import declared, reached
from learnloop_service.app.main import create_app
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.json_type import Json

FOLDER = Path(__file__).resolve().parent.parent / "app" / "dashboard" / "static"
TYPES = "api_types.d.ts"
USED = (
    "AgentSessionAccess",
    "AgentSessionCallOut",
    "AgentSessionOut",
    "AskOut",
    "BackendCatalogue",
    "CheckpointOut",
    "DeliveryBrief",
    "DeliveryOut",
    "DemonstrationsOut",
    "EndpointCreated",
    "EndpointOut",
    "EngineOut",
    "EnvironmentOut",
    "EvaluationBrief",
    "EvaluationOut",
    "EventOut",
    "FailureMap",
    "FeedbackOut",
    "FileImported",
    "FilmOut",
    "FinishedRollouts",
    "GraphListed",
    "ImprovementBrief",
    "ImprovementOut",
    "InboxOut",
    "IterationOut",
    "JudgeCallOut",
    "JudgeCatalogue",
    "JudgeQuestions",
    "KeyCreated",
    "KeyOut",
    "LearnLoopAccepted",
    "LedgerRow",
    "Likelihood",
    "ModelBrief",
    "ModelWhole",
    "NodeScores",
    "Outcomes",
    "PromotionOut",
    "PromptOut",
    "Readiness",
    "RejudgingAccepted",
    "RunComparison",
    "RejudgingBrief",
    "ReleaseAccepted",
    "ReleaseEventOut",
    "ReleaseOut",
    "RewardHistograms",
    "RunDiagnosis",
    "RunListed",
    "RunLog",
    "RunMetrics",
    "RunOut",
    "SampledTokens",
    "ScenarioSetOut",
    "ScheduleOut",
    "ScheduleRunOut",
    "SessionFeedbackOut",
    "SessionOut",
    "SettingsOut",
    "TestResult",
    "TrajectoryBrief",
    "TrajectoryOut",
    "TurnValues",
    "UploadOut",
    "WhatIfBrief",
)
_OPERATORS = re.compile(r" \([A-Z][A-Z_]+\)|(, one of|; see) `GET /[a-z]+`")
"""What the help of a field says to people who call the API or set up the service."""
_BOOLEAN = ["true", "false"]
_HEAD = "// Made from the OpenAPI file by `python -m scripts.dashboard_types`; do not edit.\n"


def files(api: Json) -> dict[str, str]:
    """Return the files' texts by name, from the OpenAPI document."""
    schemas = api["components"]["schemas"]
    request = api["paths"]["/learn-loop"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    words = set(re.findall(r"[\w.]+", (FOLDER / "start_fields.js").read_text(encoding="utf-8")))
    lines = [
        f"  {json.dumps(name)}: {json.dumps(field)},\n" for name, field in _fields(request, schemas) if name in words
    ]
    fields = f"/** @type {{Record<string, any>}} */\nexport const FIELDS = {{\n{''.join(lines)}}};\n"
    return {
        TYPES: _HEAD + "".join(declared(name, schemas[name]) for name in sorted(reached(schemas, USED))),
        "api_fields.js": f"{_HEAD}\n{fields}",
    }


def _fields(schema: Json, schemas: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the scalar settings within an object, by their path, such as `evaluation.every`."""
    for name, field in schema.get("properties", {}).items():
        kind = _resolved(field, schemas)
        if "properties" in kind:
            yield from _fields(kind, schemas, f"{prefix}{name}.")
        elif kind.get("type") in ("string", "integer", "number", "boolean"):
            about = {"help": _OPERATORS.sub("", " ".join(field.get("description", "").split())), "type": kind["type"]}
            choices = _BOOLEAN if kind["type"] == "boolean" else kind.get("enum")
            limits = {"standard": field.get("default"), "choices": choices}
            yield prefix + name, about | {key: value for key, value in limits.items() if value is not None}


def _resolved(schema: Json, schemas: Json) -> Json:
    """Return the schema that a schema refers to, without null."""
    if "$ref" in schema:
        return _resolved(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    several = [alternative for alternative in schema.get("anyOf", ()) if alternative.get("type") != "null"]
    return _resolved(several[0], schemas) if several else schema


if __name__ == "__main__":
    for name, text in files(create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")

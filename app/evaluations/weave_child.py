"""The process that publishes one evaluation to W&B Weave with the package `weave`, as one Weave evaluation per model.

It is a separate process because importing `weave` takes ten seconds, hooks into other libraries, and keeps threads. Its
argument is the file to publish; it writes the URLs to `result.json` in the same folder.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from learnloop_service.environment.json_type import Json

_SETTINGS = {"print_call_link": False, "capture_code": False, "implicitly_patch_integrations": False}


def main() -> None:
    os.nice(10)
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    import weave

    weave.init(job["project"], settings=_SETTINGS)
    urls = {model["label"]: _publish(weave, job, model) for model in job["models"]}
    weave.finish()  # sends what is still queued
    path.with_name("result.json").write_text(json.dumps(urls))


def _publish(weave: Any, job: Json, model: Json) -> str | None:
    logger = weave.EvaluationLogger(
        name=f"{job['name']} {model['label']}",
        model=model["described"],
        dataset=job["dataset"],
        eval_attributes=job["attributes"],
        scorers=job["scorers"],
    )
    for row in model["rows"]:
        prediction = logger.log_prediction(inputs=row["inputs"], output=row["output"])
        for scorer, score in row["scores"].items():
            prediction.log_score(scorer, score)
        prediction.finish()
    logger.log_summary(model["summary"])
    url: str | None = logger.ui_url
    return url


if __name__ == "__main__":
    main()

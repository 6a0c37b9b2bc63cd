"""Whether a run's checkpoints and rollouts fit on the disks that they are written to."""

import shutil

from learnloop_service.app.operations.start.run_plan import RunPlan
from learnloop_service.app.runs.expected_work import expected_rollouts
from learnloop_service.app.settings import Settings
from learnloop_service.training.bases.memory import usual_tuning_of
from learnloop_service.training.disk_need import DiskNeed, disk_need
from learnloop_service.training.tuning import Tuning

GB = 1e9
REMEDY = (
    "Free some, keep fewer checkpoints (checkpoints.keep_evaluated, keep_best, keep_last), train fewer iterations, or "
    'train a LoRA (model.tuning {"mode": "lora"}).'
)


def need_of(settings: Settings, plan: RunPlan, base_model: str, tuning: Tuning | None) -> DiskNeed | None:
    """Return what the run of a plan with all defaults takes; None if its base model is the tiny one or its files are
    not here. `base_model` and `tuning` are those that its model began with. Reads files."""
    if (directory := settings.base_models.get(base_model)) is None:
        return None
    count, retention = plan.iterations_total + 1, plan.request.checkpoints
    rollouts = expected_rollouts(plan.stored(), plan.reinforced_iterations).most
    if retention is not None:
        regular = count // retention.keep_every if retention.keep_every else 0
        count = min(count, retention.keep_best + 1 + max(retention.keep_last, 2) + retention.keep_evaluated + regular)
    try:
        return disk_need(directory, tuning or usual_tuning_of(directory), count + 1, rollouts)
    except (OSError, ValueError):
        return None


def why_too_little(settings: Settings, need: DiskNeed, engine_free: int | None) -> str | None:
    """Return why the run does not fit, or None. `engine_free` is the free space in bytes where the engine writes its
    checkpoints; None if that is not known."""
    stored = need.rollouts if settings.database_url is None else 0.0
    here = shutil.disk_usage(settings.data_dir).free
    engine = need.engine + (stored if settings.engine_url is None else 0.0)
    if engine_free is not None and engine > engine_free:
        return _fault("the engine's disk", engine, engine_free, str(need))
    if stored > here:
        return _fault(f"the disk of {settings.data_dir}", stored, here, "rollouts in the database")
    return None


def _fault(where: str, needed: float, free: int, what: str) -> str:
    return f"The run needs about {needed / GB:,.1f} GB on {where} ({what}), and {free / GB:,.1f} GB are free."

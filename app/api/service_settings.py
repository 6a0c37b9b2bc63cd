"""What the service runs with, and the price of its machine, which can change meanwhile. All of this needs the scope
`operator`, in all projects."""

from importlib.metadata import version
from pathlib import Path

from pydantic import ConfigDict, Field

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, CurrentSettings
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import Forbidden
from learnloop_service.app.runs.cost import store_price, stored_price
from learnloop_service.app.schemas.base import RequestBody, ResponseModel
from learnloop_service.app.settings import LEAST_PRICE, Settings, variable_of

router = keyed_router("catalogue")
_SHOWN = {
    "Service": ("data_dir", "host", "port", "require_keys", "max_concurrent_runs", "log_level"),
    "Defaults of runs": ("backend", "art_base_model", "art_project", "judge_model"),
    "Limits": (
        *("max_runs_per_project", "max_runs_per_backend", "rate_per_s", "rate_burst", "max_connections"),
        *("max_open_sessions", "session_max_calls", "max_graph_bytes", "max_inbox_bytes", "max_training_bytes"),
        *("judge_concurrency", "environment_servers", "lease_s", "phase_timeout_s"),
    ),
    "Deleted after days": tuple(
        f"keep_{kind}_days" for kind in ("trajectories", "rollouts", "events", "ledger", "deliveries", "verdicts")
    ),
}
"""Settings that are shown, by heading. None of them can hold a secret."""


class SettingOut(ResponseModel):
    """A setting that was read when the service started."""

    variable: str
    """Environment variable that sets it."""
    value: str | None
    """Its value; null if it has none."""


class SettingGroup(ResponseModel):
    """Settings of one kind."""

    title: str
    """What they are about."""
    items: list[SettingOut]
    """The settings."""


class SettingsOut(ResponseModel):
    """What the service runs with. Secrets are not among it."""

    version: str
    """Version of Learnloop."""
    machine_price_per_hour: float | None
    """US dollars that an hour of the machine costs, for runs that begin from now on; null if nobody has said."""
    machine_price_at_start: float | None
    """The price with which the service was started, and will be started again; null without one."""
    groups: list[SettingGroup]
    """Settings that were read when the service started, by kind."""


class SettingsChange(RequestBody):
    """Settings to change while the service runs."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"machine_price_per_hour": 1.2}]})

    machine_price_per_hour: float | None = Field(ge=LEAST_PRICE, le=1_000_000)
    """US dollars that an hour of the machine costs; null for no price. Runs that have begun keep theirs. Those that
    ran before there was one get the first. A worker with a price of its own keeps to that."""


@router.get("/settings")
async def get_settings(database: CurrentDatabase, settings: CurrentSettings, caller: CurrentCaller) -> SettingsOut:
    """Get what the service runs with, and the price of its machine."""
    _require_all_projects(caller)
    return await _settings(database, settings)


@router.patch("/settings")
async def change_settings(
    database: CurrentDatabase, settings: CurrentSettings, caller: CurrentCaller, request: SettingsChange
) -> SettingsOut:
    """Change the price of the machine, for runs that begin from now on."""
    _require_all_projects(caller)
    await store_price(database, request.machine_price_per_hour)
    return await _settings(database, settings)


async def _settings(database: Database, settings: Settings) -> SettingsOut:
    return SettingsOut(
        version=version("learnloop"),
        machine_price_per_hour=await stored_price(database),
        machine_price_at_start=settings.machine_price_per_hour,
        groups=[
            SettingGroup(
                title=title,
                items=[SettingOut(variable=variable_of(name), value=_text(getattr(settings, name))) for name in names],
            )
            for title, names in _SHOWN.items()
        ],
    )


def _text(value: object) -> str | None:
    """Return a value as a variable has it, but with the whole path of a directory."""
    if isinstance(value, Path):
        return str(value.resolve())
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _require_all_projects(caller: Caller) -> None:
    if caller.project is not None:
        raise Forbidden(f"This API key belongs to project {caller.project}, and settings are of the whole service.")

"""All settings, and the only place that reads the environment.

Each field comes from the environment variable named after it (`LEARNLOOP_PORT`, `DATABASE_URL`, ...) or from a
`.env` file in the working directory. `.env.example` lists them.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    Field,
    HttpUrl,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""What a project or a model may be called: it becomes a directory name."""

MODEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*$"
"""A model's name; never an address, which some of litellm's providers would open."""

TINY_BASE = "learnloop/tiny"

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class SettingsError(Exception):
    """A setting is missing or wrong; the message names each and says what would be right."""


def _from(variable: str) -> Any:
    """A field that is read from exactly that variable, or given by its own name in code."""
    return AliasChoices(variable, variable.lower())


class Settings(BaseSettings):
    """See `.env.example` for what each one does."""

    model_config = SettingsConfigDict(
        env_prefix="LEARNLOOP_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    data_dir: Path = Path(".learnloop")
    """Database, models, checkpoints and inboxes lie here. Relative to the working directory; made if missing."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    backend: str = "embedded"
    max_concurrent_runs: int = Field(1, ge=1, le=64)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON lines otherwise."""

    engine_threads: int = Field(1, ge=1, le=256)
    engine_train_threads: int = Field(default_factory=lambda: min(2, os.cpu_count() or 1), ge=1, le=256)
    """While training nothing else of ours is busy. Sampling keeps to `engine_threads`, so that a seed repeats a run."""
    engine_slots: int = Field(64, ge=1, le=4096)
    """Conversations that are sampled at once."""
    engine_device: Literal["cpu", "cuda"] = "cpu"
    engine_base_models: Annotated[dict[str, Path], NoDecode] = Field(default_factory=dict)
    """Base models beside the shipped one: NAME=DIRECTORY, comma-separated."""

    database_url: SecretStr | None = Field(None, validation_alias=_from("DATABASE_URL"))
    """None starts an embedded Postgres in the data directory."""
    frontend_url: HttpUrl | None = Field(None, validation_alias=_from("FRONTEND_URL"))
    """Receives a POST after every iteration."""
    art_project: Name = Field("learnloop", validation_alias=_from("ART_PROJECT"))
    art_model_name: Name | None = Field(None, validation_alias=_from("ART_MODEL_NAME"))
    """None names each run's model after the run."""
    art_base_model: str = Field(TINY_BASE, validation_alias=_from("ART_BASE_MODEL"), min_length=1, max_length=256)
    openai_api_key: SecretStr | None = Field(None, validation_alias=_from("OPENAI_API_KEY"))
    judge_model: str | None = Field(None, pattern=MODEL_PATTERN)
    """The language model that judges, in litellm's form: `openai/gpt-4.1-mini`, `anthropic/...`."""
    judge_base_url: HttpUrl | None = None
    """An OpenAI-compatible server for `openai/...` names; None: the provider's own address."""
    judge_api_key: SecretStr | None = None
    """None takes OPENAI_API_KEY, or what the provider's library reads."""
    judge_concurrency: int = Field(8, ge=1, le=256)
    """Requests to the judge model under way at once, for each run."""
    wandb_api_key: SecretStr | None = Field(None, validation_alias=_from("WANDB_API_KEY"))

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("engine_base_models", mode="before")
    @classmethod
    def _name_directory_pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [entry.strip().partition("=") for entry in value.split(",") if entry.strip()]
        if any(not name or not directory for name, _, directory in pairs):
            raise ValueError("expected NAME=DIRECTORY, comma-separated")
        return {name.strip(): directory.strip() for name, _, directory in pairs}


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process; keyword arguments win. Raises SettingsError."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_readable(error)) from None


def _readable(error: ValidationError) -> str:
    """One line per wrong setting, without the value: it may be a secret."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        field = str(problem["loc"][0])
        known = Settings.model_fields.get(field)
        variable = f"LEARNLOOP_{field.upper()}" if known and known.validation_alias is None else field.upper()
        lines.append(f"{variable}: {problem['msg']}")
    return "bad settings: " + "; ".join(lines)

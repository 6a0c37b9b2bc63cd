"""All settings of the service, read from the environment.

Each field comes from the environment variable named after it (`LEARNLOOP_PORT`, `DATABASE_URL`, ...) or from a `.env`
file in the working directory. `.env.example` lists them.
"""

import ipaddress
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from opentelemetry.util.re import parse_env_headers
from pydantic import (
    AliasChoices,
    Field,
    HttpUrl,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from learnloop_service.app.domain.listed_model import ListedModel, server_url
from learnloop_service.app.domain.names import MODEL_PATTERN, NAME_PATTERN, PATH_PATTERN, REPO_PATTERN, TINY_BASE, Name
from learnloop_service.app.domain.unknown_name import similar
from learnloop_service.app.security.address_guard import is_admissible
from learnloop_service.app.security.webhook_signing import is_secret
from learnloop_service.judges.providers import Provider, provider_of
from learnloop_service.training.backends import registry as backends
from learnloop_service.training.bases.files import added_base_models
from learnloop_service.training.engine_flags import is_loopback, parse_open
from learnloop_service.training.protocol.validation_message import message_of

_HOST = r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])"
_ORIGIN_PATTERN = rf"http://{_HOST}(?::(?!80$)\d{{1,5}})?|https://{_HOST}(?::(?!443$)\d{{1,5}})?"


LEAST_PRICE = 0.0001
"""Lowest price of an hour of the machine, in US dollars: products with smaller ones underflow in the database."""
_PREFIX = "LEARNLOOP_"
_CLIENT_VARIABLES = ("LEARNLOOP_API_KEY", "LEARNLOOP_URL")
"""Variables that the command line reads when it talks to a service."""
_SIMILARITY = 0.75
_ENGINE_FLAGS = (
    *("THREADS", "TRAIN_THREADS", "SLOTS", "DEVICE", "WORKERS", "SAMPLERS", "TRAINERS", "SAMPLER"),
    *("TRAINING_WEIGHTS", "VLLM_COMMAND", "VLLM_ARGS", "VLLM_GPUS", "VLLM_URL"),
)
"""Former settings LEARNLOOP_ENGINE_..., which are now flags in LEARNLOOP_ENGINE_ARGS."""


class SettingsError(Exception):
    """A setting is missing or invalid. The message names each one and what is expected."""


def _from(variable: str) -> Any:
    """Let a field be set by exactly this environment variable, or by its lower-case name in code."""
    return AliasChoices(variable, variable.lower())


def _from_text(*fields: str) -> Callable[[Callable[[Any, str], object]], Any]:
    """Decorate the method that reads these fields where they are given as text, as variables are."""

    def decorate(read: Callable[[Any, str], object]) -> Any:
        def validate(cls: Any, value: object) -> object:
            return read(cls, value) if isinstance(value, str) else value

        return field_validator(*fields, mode="before")(classmethod(validate))

    return decorate


class Settings(BaseSettings):
    """The settings, described in `.env.example`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    data_dir: Path = Path(".learnloop")
    """Directory of the database, models, checkpoints and inboxes. Created if missing. A relative path starts at the
    working directory."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    require_keys: Literal["auto", "always", "never"] = "auto"
    """auto: keys are required once one was created, and always unless the service listens on loopback only."""
    operator_key: SecretStr | None = Field(None, min_length=32)
    """An API key with all scopes in all projects. It is used to create the first keys in the database."""
    rate_per_s: float = Field(50.0, ge=0, le=1_000_000)
    """Sustained requests per second per API key. 0: unlimited."""
    rate_burst: int = Field(200, ge=1, le=1_000_000)
    """Burst size per API key."""
    failed_keys_per_minute: float = Field(60.0, ge=0, le=1_000_000)
    """Requests with a wrong API key per minute and address, after a burst of 30. 0: no limit."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port on which `learnloop worker` answers GET /metrics and /health. None: it does not listen."""
    session_hours: float = Field(12.0, gt=0, le=720)
    """Lifetime of a browser's sign-in, in hours."""
    max_open_sessions: int = Field(1_000, ge=1, le=1_000_000)
    """Maximum number of open agent sessions per project. Sessions of runs do not count."""
    session_max_calls: int = Field(500, ge=1, le=100_000)
    """Maximum number of requests of one attempt in an agent session that is opened without `limits.max_calls`. Sessions
    of runs have the run's `max_turns`."""
    max_connections: int = Field(2_000, ge=16, le=50_000)
    """Maximum number of open connections to this process; lower if its limit of open files is."""
    max_connections_per_client: int = Field(1_000, ge=0, le=50_000)
    """Maximum number of open connections per client address. 0: no limit."""
    public_url: HttpUrl | None = None
    """URL at which agents outside this process reach the service, with a proxy's prefix. None: http://HOST:PORT, or
    loopback if it listens on all addresses; sessions that are opened by request then get the address of the request,
    which behind a proxy on another machine lacks its TLS."""
    agent_modules: Annotated[tuple[str, ...], NoDecode] = ()
    """Python modules, including their submodules, whose functions runs can name as their agent; comma-separated."""
    replay: Annotated[tuple[str, ...], NoDecode] = ()
    """Environments, and tools as ENVIRONMENT/TOOL, whose calls can be made again when a recorded rollout is replayed,
    comma-separated. Those of the included environments without outside effects always can."""
    backend: str = "embedded"
    """Name of the backend of runs that name none."""
    train_on_projects: Annotated[tuple[str, ...], NoDecode] = ()
    """Projects whose sessions and questions can become training tasks unless a request says `"train": false`;
    comma-separated. In others only those that say `"train": true` can."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Browser origins allowed to call the API (CORS), comma-separated, or `*`."""
    max_graph_bytes: int = Field(32_000_000, ge=1_000_000, le=256_000_000)
    """Maximum size in bytes of requests with a graph, scenarios or demonstrations."""
    max_inbox_bytes: int = Field(64_000_000, ge=1_000_000, le=256_000_000)
    """Maximum size in bytes of mail uploaded as an inbox."""
    max_training_bytes: int = Field(64_000_000, ge=1_000_000, le=256_000_000)
    """Maximum size in bytes of training jobs that ART's clients send."""
    max_concurrent_runs: int = Field(1, ge=0, le=64)
    """Maximum number of concurrent runs in this process, and of concurrent evaluations (at least two). 0: the process
    only serves the API, and workers drive runs and evaluations."""
    max_runs_per_project: int | None = Field(None, ge=1)
    """Maximum number of concurrent runs per project over all workers. None: no limit."""
    max_runs_per_backend: int | None = Field(None, ge=1)
    machine_price_per_hour: float | None = Field(None, ge=LEAST_PRICE, le=1_000_000)
    """US dollars that an hour of the machine costs, for the cost of runs that begin now. None: what the page Settings
    of the dashboard says, if anything."""
    lease_s: float = Field(30.0, ge=1.0, le=3600.0)
    """Duration of a lease: if a worker dies, another one can take over its run or evaluation after this time."""
    phase_timeout_s: float = Field(3600.0, ge=1.0)
    """A run or evaluation that makes no progress for this long counts as hung and fails."""
    keep_trajectories_days: int | None = Field(None, ge=1)
    """Trajectories and judge calls are deleted this many days after their run ended, and questions this many days after
    they were asked, unless they have feedback. None: never (as for the settings below)."""
    keep_rollouts_days: int | None = Field(None, ge=1)
    """Token ids and log-probabilities of rollouts are deleted this many days after their run ended. None: with the
    run's trajectories."""
    keep_events_days: int | None = Field(None, ge=1)
    """Events are deleted this many days after their run ended."""
    keep_ledger_days: int | None = Field(None, ge=1)
    """A run's ledger is reduced to its sums this many days after the run ended."""
    keep_deliveries_days: int | None = Field(None, ge=1)
    """Webhook deliveries older than this are deleted unless they are still waiting to be sent."""
    keep_verdicts_days: int | None = Field(None, ge=1)
    """Cached verdicts of judge models older than this are deleted."""
    restart_after_s: float = Field(60.0, ge=0.0)
    """The engine and the embedded Postgres are restarted if they have not answered for this long. 0: never."""
    stop_timeout_s: float = Field(30.0, ge=1.0)
    """Maximum duration of an orderly stop. After it, all processes that were started are killed."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON lines otherwise."""

    engine_args: Annotated[tuple[str, ...], NoDecode] = ()
    """Command-line flags for the `learnloop engine` that this process starts, with a shell's quoting."""
    engine_cache_mb: int | None = Field(None, ge=1)
    """Memory for the keys and values of conversations in our engine, in MB. None: 512, and on a GPU half of what is
    free. `--cache-mb` in `engine_args` takes precedence."""
    engine_base_models: Annotated[dict[str, Path], NoDecode] = Field(default_factory=dict)
    """Additional base models: NAME=DIRECTORY, comma-separated. Those added to the data directory need no entry."""
    engine_checkpoint_store: str | None = Field(None, pattern=r"^(s3|file)://[^@?#]+$")
    """Where our engine keeps models and checkpoints to share them with engines on other machines: s3://BUCKET/PREFIX or
    file:///DIRECTORY. None: in the data directory."""
    engine_url: HttpUrl | None = None
    """URL of an engine that several processes share. None: this process starts its own in the data directory."""
    engine_key: SecretStr | None = None
    """Key for the shared engine."""

    database_url: SecretStr | None = Field(None, validation_alias=_from("DATABASE_URL"))
    """None: an embedded Postgres in the data directory."""
    direct_database_url: SecretStr | None = Field(None, validation_alias=_from("DIRECT_DATABASE_URL"))
    """The same database past its pooler, which does not pass on notifications. None: DATABASE_URL."""
    frontend_url: HttpUrl | None = Field(None, validation_alias=_from("FRONTEND_URL"))
    """URL that receives a POST after every iteration of every run."""
    frontend_webhook_secret: SecretStr | None = Field(None, validation_alias=_from("FRONTEND_WEBHOOK_SECRET"))
    """Signs the POSTs to FRONTEND_URL: `whsec_` and 24 to 64 bytes in base64. None: unsigned."""
    allowed_private_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Private host names and networks (CIDR) that webhooks can be sent to."""
    secret_key: SecretStr | None = Field(None, min_length=32)
    """Encrypts stored secrets. None: a key in the data directory, created if missing."""
    art_project: Name = Field("learnloop", validation_alias=_from("ART_PROJECT"))
    art_model_name: Name | None = Field(None, validation_alias=_from("ART_MODEL_NAME"))
    """None: each run's model is named after the run."""
    art_base_model: str = Field(TINY_BASE, validation_alias=_from("ART_BASE_MODEL"), min_length=1, max_length=256)
    openai_api_key: SecretStr | None = Field(None, validation_alias=_from("OPENAI_API_KEY"))
    models: Annotated[tuple[ListedModel, ...], NoDecode] = ()
    """Language models that requests can name, as a JSON list. The first one judges if a request names none."""
    judge_model: str | None = Field(None, pattern=MODEL_PATTERN)
    """PROVIDER/MODEL, or the name of one of `models`. It becomes the first of the listed models."""
    judge_base_url: HttpUrl | None = None
    """URL of an OpenAI-compatible server. None: the provider's own address."""
    judge_api_key: SecretStr | None = None
    """None: the provider's key, if the model is at the provider's own address."""
    judge_concurrency: int = Field(8, ge=1, le=256)
    """Maximum number of concurrent requests to the judge model, per run."""
    judge_requests_per_minute: float | None = Field(None, gt=0, le=1e6)
    """Limit for each judge model over all runs and workers. None: no limit."""
    judge_tokens_per_minute: float | None = Field(None, gt=0, le=1e9)
    """Limit of prompt and completion tokens for each judge model over all runs and workers. None: no limit."""
    environment_commands: Annotated[tuple[str, ...], NoDecode] = ()
    """Commands that environments can run, such as an MCP server's, comma-separated. An entry is the whole command or
    its beginning followed by `*`. Empty: none."""
    environment_modules: Annotated[tuple[str, ...], NoDecode] = ()
    """Python modules that `verifiers` can load as environments, comma-separated. Empty: none."""
    environment_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Private host names and networks (CIDR) that environments can reach."""
    environment_secrets: dict[str, dict[str, SecretStr]] = Field(default_factory=dict)
    """Secrets for the servers of environments, as JSON: server (URL or command) -> name -> secret."""
    environment_servers: int = Field(16, ge=1, le=1024)
    """Maximum number of servers, or connections to them, that a run uses concurrently."""
    wandb_api_key: SecretStr | None = Field(None, validation_alias=_from("WANDB_API_KEY"))
    weave_project: str | None = Field(
        None, validation_alias=_from("WEAVE_PROJECT"), pattern=r"^([\w.-]+/)?[\w.-]+$", max_length=256
    )
    """ENTITY/PROJECT, or PROJECT under the key's default entity. Traces are sent there if WANDB_API_KEY is also set."""
    wandb_base_url: HttpUrl = Field(HttpUrl("https://api.wandb.ai"), validation_alias=_from("WANDB_BASE_URL"))
    wf_trace_server_url: HttpUrl | None = Field(None, validation_alias=_from("WF_TRACE_SERVER_URL"))
    """URL of Weave's trace server. None: the one that belongs to WANDB_BASE_URL."""
    otel_sdk_disabled: bool = Field(False, validation_alias=_from("OTEL_SDK_DISABLED"))
    """Turns off all traces."""
    otel_exporter_otlp_endpoint: HttpUrl | None = Field(None, validation_alias=_from("OTEL_EXPORTER_OTLP_ENDPOINT"))
    """Base URL of an OpenTelemetry collector. Traces are sent to its v1/traces."""
    otel_exporter_otlp_traces_endpoint: HttpUrl | None = Field(
        None, validation_alias=_from("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
    """Exact URL for traces, in place of v1/traces under OTEL_EXPORTER_OTLP_ENDPOINT."""
    otel_exporter_otlp_headers: SecretStr | None = Field(None, validation_alias=_from("OTEL_EXPORTER_OTLP_HEADERS"))
    """NAME=VALUE pairs, comma-separated and URL-encoded."""
    otel_exporter_otlp_traces_headers: SecretStr | None = Field(
        None, validation_alias=_from("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
    )
    """Replaces OTEL_EXPORTER_OTLP_HEADERS."""

    push_timeout_s: float = Field(1800.0, ge=1.0, le=3600.0)
    """Maximum duration of pushing a checkpoint."""
    hf_token: SecretStr | None = Field(None, validation_alias=_from("HF_TOKEN"))
    hf_endpoint: HttpUrl = Field(HttpUrl("https://huggingface.co"), validation_alias=_from("HF_ENDPOINT"))
    """URL of the Hugging Face Hub or of a server with the same protocol."""
    hf_repos: Annotated[tuple[tuple[str, str], ...], NoDecode] = ()
    """Repositories that each project can push to: PROJECT=NAMESPACE/NAME, comma-separated. `*` matches anything except
    a slash; as the project it stands for all projects."""
    s3_endpoint: HttpUrl | None = None
    """URL of an S3-compatible store. None: Amazon S3."""
    s3_bucket: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9._-]{1,62}$")
    s3_region: str = Field("us-east-1", pattern=r"^[a-z0-9-]{1,64}$")
    s3_key_id: SecretStr | None = None
    s3_secret: SecretStr | None = None
    s3_prefix: str = Field("", pattern=rf"^({PATH_PATTERN})?$", max_length=512)
    """Prefix of all keys. The project's name follows it."""

    @_from_text("log_level")
    def _lower(cls, value: str) -> object:
        return value.lower()

    @field_validator("require_keys")
    @classmethod
    def _keys_on_network(cls, value: str, info: ValidationInfo) -> str:
        if value == "never" and not is_loopback(info.data["host"]):
            raise ValueError(
                "without keys anyone who reaches the service can use it: never is only allowed with "
                "LEARNLOOP_HOST=127.0.0.1; for other addresses keep auto and create keys (docs/security.md)"
            )
        return value

    @property
    def traced(self) -> bool:
        """Whether traces are sent anywhere."""
        if self.otel_sdk_disabled:
            return False
        collector = self.otel_exporter_otlp_traces_endpoint or self.otel_exporter_otlp_endpoint
        return collector is not None or (self.weave_project is not None and self.wandb_api_key is not None)

    @property
    def otlp_headers(self) -> Mapping[str, str]:
        """Headers for requests to the OpenTelemetry collector."""
        headers = self.otel_exporter_otlp_traces_headers or self.otel_exporter_otlp_headers
        return parse_env_headers(headers.get_secret_value(), liberal=True) if headers else {}

    @property
    def agents_url(self) -> str:
        """URL at which agents outside this process reach the service, without a trailing slash."""
        host = "127.0.0.1" if is_any(self.host) else self.host
        url_host = f"[{host.replace('%', '%25')}]" if ":" in host else host  # RFC 3986, and RFC 6874 for zones
        return str(self.public_url or f"http://{url_host}:{self.port}").rstrip("/")

    @property
    def session_lifetime(self) -> timedelta:
        """How long a browser stays signed in."""
        return timedelta(hours=self.session_hours)

    @property
    def keys_required(self) -> bool:
        """Whether requests need an API key, as far as the settings say: if one is in the database, `auto` means yes."""
        return bool(self.guarded)

    @property
    def guarded(self) -> bool | None:
        """Whether requests need an API key. None: if one was ever created."""
        if self.require_keys == "auto":
            return True if self.operator_key is not None or not is_loopback(self.host) else None
        return self.require_keys == "always"

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, value: str) -> str:
        if value not in backends.names():
            raise ValueError(f"there is no backend {value!r}; expected one of {', '.join(backends.names())}")
        return value

    @_from_text("cors_origins")
    def _origins(cls, value: str) -> object:
        origins = _entries(value)
        if origins != ("*",) and not all(re.fullmatch(_ORIGIN_PATTERN, origin) for origin in origins):
            raise ValueError(
                "expected origins as browsers send them, such as https://app.example or http://localhost:3000, "
                "comma-separated (scheme, lower case, no path, trailing slash or default port), or * alone"
            )
        return origins

    @field_validator("frontend_webhook_secret")
    @classmethod
    def _is_webhook_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not is_secret(value.get_secret_value()):
            raise ValueError("expected whsec_ and 24 to 64 random bytes in base64")
        return value

    @_from_text("environment_commands", "environment_modules", "train_on_projects", "replay")
    def _separated(cls, value: str) -> object:
        return _entries(value)

    @field_validator("environment_commands")
    @classmethod
    def _commands(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for command in value:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"{command!r} is no command: {error}") from error
            if words[:1] in ([], ["*"]):
                raise ValueError("a command must begin with the program: * alone would allow every command")
        return value

    @_from_text("allowed_private_hosts", "environment_hosts")
    def _hosts(cls, value: str) -> object:
        hosts = _entries(value)
        if not all(map(is_admissible, hosts)):
            raise ValueError("expected host names and networks such as crm.internal or 10.1.0.0/16, comma-separated")
        return hosts

    @_from_text("agent_modules")
    def _modules(cls, value: str) -> object:
        modules = _entries(value)
        if not all(part.isidentifier() for module in modules for part in module.split(".")):
            raise ValueError("expected names of Python modules such as my_agents or acme.agents, comma-separated")
        return modules

    @_from_text("hf_repos")
    def _repos_of_projects(cls, value: str) -> object:
        pairs = [entry.partition("=") for entry in _entries(value)]
        if not all(
            (project == "*" or re.fullmatch(NAME_PATTERN, project))
            and re.fullmatch(REPO_PATTERN, repo.replace("*", "x"))
            for project, _, repo in pairs
        ):
            raise ValueError(
                "expected PROJECT=NAMESPACE/NAME such as mail=acme/mail-*, comma-separated; project * is any"
            )
        return tuple((project, repo) for project, _, repo in pairs)

    @_from_text("models")
    def _listed(cls, value: str) -> object:
        return [_with_key(entry) for entry in _json_list(value)]

    @field_validator("models")
    @classmethod
    def _names_differ(cls, value: tuple[ListedModel, ...]) -> tuple[ListedModel, ...]:
        names = [entry.name for entry in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each model needs a name that no other has; twice: {', '.join(twice)}")
        return value

    @field_validator("judge_model")
    @classmethod
    def _check_provider(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value not in [entry.name for entry in info.data.get("models", ())]:
            provider_of(value)
        return value

    @field_validator("judge_base_url", "judge_api_key")
    @classmethod
    def _of_the_judge_model(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or "judge_model" not in info.data:
            return value
        if info.data["judge_model"] is None:
            raise ValueError("this is for the model that LEARNLOOP_JUDGE_MODEL names, which is missing")
        if info.data["judge_model"] in [entry.name for entry in info.data.get("models", ())]:
            raise ValueError("LEARNLOOP_JUDGE_MODEL is on the list of LEARNLOOP_MODELS, which has its address and key")
        if info.field_name == "judge_base_url":
            server_url(str(value))
        return value

    @property
    def base_models(self) -> dict[str, Path]:
        """The engine's base models except the included one: those in the data directory and in `engine_base_models`."""
        return added_base_models(self.data_dir) | self.engine_base_models

    def provider_key(self, provider: Provider) -> SecretStr | None:
        """Return the operator's key for a provider, to be used at the provider's own address only."""
        if provider.key_variable == "OPENAI_API_KEY":
            return self.openai_api_key
        return _variable(provider.key_variable)

    @property
    def engine_device(self) -> Literal["cpu", "cuda"]:
        """The kind of device that our engine computes on."""
        device: Literal["cpu", "cuda"] = parse_open(self.engine_args).device
        return device

    @property
    def engine_training_weights(self) -> Literal["exact", "fp8"]:
        """The precision of the bases that our engine trains adapters over."""
        weights: Literal["exact", "fp8"] = parse_open(self.engine_args).training_weights
        return weights

    @_from_text("engine_args")
    def _split_arguments(cls, value: str) -> object:
        return shlex.split(value)

    @field_validator("engine_args")
    @classmethod
    def _as_the_engine_takes_them(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_open(value)
        return value

    @_from_text("engine_base_models")
    def _name_directory_pairs(cls, value: str) -> object:
        pairs = [entry.partition("=") for entry in _entries(value)]
        if any(not name or not directory for name, _, directory in pairs):
            raise ValueError("expected NAME=DIRECTORY, comma-separated")
        return {name.strip(): directory.strip() for name, _, directory in pairs}


def _entries(text: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated text."""
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _json_list(text: str) -> list[dict[str, Any]]:
    """Parse a JSON list of objects. Raises ValueError."""
    expected = 'expected a JSON list such as [{"model": "openai/gpt-4.1-mini", "key_variable": "OPENAI_API_KEY"}]'
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{expected}; {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(expected)
    return entries


def _with_key(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with the key in place of the variable that holds it. Raises ValueError."""
    if "key" in entry:
        raise ValueError("give the name of the variable that holds the key, as key_variable, instead of the key")
    model, variable = entry.get("model"), entry.get("key_variable")
    if variable is None and isinstance(model, str) and entry.get("base_url") is None:
        variable = provider_of(model).key_variable
    if variable is None:
        return entry
    if not isinstance(variable, str) or (key := _variable(variable)) is None:
        raise ValueError(f"{model} needs a key, and the variable {variable} is not set")
    return {**{name: value for name, value in entry.items() if name != "key_variable"}, "key": key}


def _variable(name: str) -> SecretStr | None:
    """Return a secret from the environment or the `.env` file, or None if it is missing or empty."""
    value = os.environ.get(name) or dotenv_values(str(Settings.model_config["env_file"])).get(name)
    return SecretStr(value) if value else None


def is_any(host: str) -> bool:
    """Return whether the host stands for all addresses of this machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def load_settings(**overrides: Any) -> Settings:
    """Return the settings of this process. Keyword arguments take precedence. Raises SettingsError."""
    env_file = overrides.get("_env_file", Settings.model_config["env_file"])
    variables = _our_variables(env_file)
    if refused := [*_renamed_settings(variables), *_typos(variables)]:
        raise SettingsError(f"bad settings: {'; '.join(refused)}")
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_error_message(error)) from None
    if faults := list(_backend_faults(env_file)):
        raise SettingsError(f"bad settings: {'; '.join(faults)}")
    return settings


def _backend_faults(env_file: Any) -> Iterator[str]:
    """Yield what is wrong with the settings of each backend. One that cannot be loaded is listed with the reason."""
    for name, _ in backends.every_traits():
        try:
            backends.read_settings(name, _env_file=env_file)
        except backends.BadSettings as error:
            yield str(error)


def _our_variables(env_file: Any) -> dict[str, str]:
    """Return all variables with the prefix of our settings. The environment takes precedence over the file."""
    variables = {**(dotenv_values(env_file) if env_file else {}), **os.environ}
    return {name: value or "" for name, value in sorted(variables.items()) if name.startswith(_PREFIX)}


def _renamed_settings(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield an error message for each setting that another one has replaced."""
    if variables.get(f"{_PREFIX}PROMPTED_SERVERS"):
        yield f"{_PREFIX}PROMPTED_SERVERS is gone: name the models and their servers in {_PREFIX}MODELS"
    for name in _ENGINE_FLAGS:
        variable, flag = f"{_PREFIX}ENGINE_{name}", f"--{name.lower().replace('_', '-')}"
        if value := variables.get(variable):
            option = f"{flag}={shlex.quote(value)}" if value.startswith("-") or " " in value else f"{flag} {value}"
            yield f'{variable} is gone: use {_PREFIX}ENGINE_ARGS="{option}"'


def _typos(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield an error message for each variable that is almost the name of a setting. Other variables with our prefix
    can belong to other programs, so they are not errors."""
    names = {name.upper() for name in Settings.model_fields} | {
        name.removeprefix(_PREFIX) for name in (*_CLIENT_VARIABLES, *backends.variables())
    }
    moved = {f"ENGINE_{name}" for name in _ENGINE_FLAGS}
    for name in (variable.removeprefix(_PREFIX) for variable in variables):
        if name not in names | moved and (closest := similar(name, sorted(names), _SIMILARITY)) is not None:
            yield f"{_PREFIX}{name}: Unknown setting. Did you mean {_PREFIX}{closest}?"


def variable_of(field: str) -> str:
    """Return the environment variable of a field. A name that is not a field's becomes upper case."""
    setting = Settings.model_fields.get(field)
    return f"{_PREFIX}{field.upper()}" if setting and setting.validation_alias is None else field.upper()


def _error_message(error: ValidationError) -> str:
    """Return one message for each wrong setting, without its value, which can be a secret."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        field = str(problem["loc"][0])
        lines.append(f"{variable_of(field)}: {message_of(problem)}")
    return "bad settings: " + "; ".join(lines)

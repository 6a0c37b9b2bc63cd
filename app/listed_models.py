"""The language models that requests can name: those that the operator lists and, if no API keys are required, those of
known providers.

Each model has an address and a key. The key is sent to that address only. Connections go to public addresses and to the
host that the operator configured for the model.
"""

from functools import partial

import httpx
import structlog

from learnloop_service.app.domain.listed_model import ListedModel
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.security.address_guard import AddressGuard, guarded_transport
from learnloop_service.app.settings import Settings
from learnloop_service.judges.base import JudgeModel, Models, NoRateLimit, RateLimit, UnknownModel
from learnloop_service.judges.providers import PROVIDERS, provider_of

log = structlog.get_logger(__name__)


class ListedModels:
    """`learnloop_service.judges.base.Models` from the settings."""

    def __init__(self, settings: Settings, rate: RateLimit | None = None) -> None:
        self._settings = settings
        self._rate = rate or NoRateLimit()
        self._listed = {entry.name: entry for entry in _entries(settings)}

    @property
    def names(self) -> list[str]:
        """Names of the listed models, in their order."""
        return list(self._listed)

    def model(self, name: str | None) -> JudgeModel:
        """Return the named model, or the first listed one for None. Raises UnknownModel."""
        if name is None:
            name = next(iter(self._listed), None)
        if name is None:
            raise UnknownModel(
                "no model is named, and none is listed: set LEARNLOOP_JUDGE_MODEL or LEARNLOOP_MODELS, or name one"
            )
        entry = self._listed.get(name) or self._unlisted(name)
        provider = provider_of(entry.model)
        if entry.base_url is None and entry.key is None:  # all providers require keys
            raise UnknownModel(f"The model {name!r} needs a key: set {provider.key_variable}. {self._available}")
        address = entry.base_url or provider.base_url
        # An address configured by the operator can be private. A provider's own address must be public.
        guard = AddressGuard([httpx.URL(address).host] if entry.base_url else [])
        return JudgeModel(
            name=entry.model,
            base_url=address,
            api_key=entry.key.get_secret_value() if entry.key else None,
            transport=partial(guarded_transport, guard),
            price=entry.price,
            concurrency=self._settings.judge_concurrency,
            rate=self._rate,
        )

    def _unlisted(self, name: str) -> ListedModel:
        """Return a model of a known provider, with the operator's key for that provider. Raises UnknownModel."""
        if self._settings.keys_required:
            raise UnknownModel(f"Unknown model {name!r}. {self._available}")
        try:
            provider = provider_of(name)
        except ValueError as error:
            raise UnknownModel(f"Unknown model {name!r}. {self._available}") from error
        return ListedModel(model=name, key=self._settings.provider_key(provider))

    @property
    def _available(self) -> str:
        listed = f"Available: {', '.join(self._listed)}" if self._listed else "No models are listed"
        if self._settings.keys_required:
            return f"{listed}. The operator lists models in LEARNLOOP_MODELS."
        return (
            f"{listed}; PROVIDER/MODEL also works for {', '.join(PROVIDERS)}, if the provider's key is set. "
            "Other models can be listed in LEARNLOOP_MODELS."
        )


class NotedModels:
    """`learnloop_service.judges.base.Models` that notes which models were asked for, so that the reply to a request can
    warn about them."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._without_key: list[str] = []
        self._without_price: list[str] = []

    def model(self, name: str | None) -> JudgeModel:
        """Return the model. Raises UnknownModel."""
        model = self._models.model(name)
        if model.price is None and (label := name or model.name) not in self._without_price:
            self._without_price.append(label)
        if model.api_key is None and (label := name or model.name) not in self._without_key:
            self._without_key.append(label)
        return model

    def check_budget(self, max_usd: float | None) -> None:
        """Raise InvalidRequest if a budget in dollars would not see what the models cost."""
        if max_usd is not None and self._without_price:
            raise InvalidRequest(
                ("body", "budget", "max_usd"),
                f"No price is known for {', '.join(self._without_price)}, so a budget in dollars would never be "
                "reached. The operator gives prices in LEARNLOOP_MODELS (usd_per_million_prompt_tokens and "
                "usd_per_million_completion_tokens, 0 for a server of your own); otherwise limit max_tokens.",
            )

    @property
    def warnings(self) -> list[str]:
        """Warnings about models whose server may want a key that is not configured, which only a call can show."""
        return [
            f"No key is configured for the model {name}, which has an address of its own. If its server requires a "
            "key, all requests to it fail. The operator gives a key as key_variable of the model's entry in "
            "LEARNLOOP_MODELS, or as LEARNLOOP_JUDGE_API_KEY for LEARNLOOP_JUDGE_MODEL."
            for name in self._without_key
        ]


def log_listed_models(settings: Settings) -> None:
    """Log which models requests can name, and whether LEARNLOOP_JUDGE_MODEL is the first one."""
    names = ListedModels(settings).names
    if settings.judge_model is not None:
        log.info("LEARNLOOP_JUDGE_MODEL is the first of the listed models", model=settings.judge_model)
    if names or settings.keys_required:
        log.info("models that requests can name", models=names, others=not settings.keys_required)


def _entries(settings: Settings) -> list[ListedModel]:
    """Return the listed models, the judge model first."""
    judge = settings.judge_model
    if judge is None:
        return list(settings.models)
    first = [entry for entry in settings.models if entry.name == judge] or [_judge_model(settings, judge)]
    return first + [entry for entry in settings.models if entry.name != judge]


def _judge_model(settings: Settings, model: str) -> ListedModel:
    """Return the model that LEARNLOOP_JUDGE_* describe. A provider's key is only used at the provider's own address."""
    base_url = None if settings.judge_base_url is None else str(settings.judge_base_url)
    key = settings.judge_api_key
    if key is None and base_url is None:
        key = settings.provider_key(provider_of(model))
    return ListedModel(model=model, base_url=base_url, key=key)

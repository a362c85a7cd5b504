"""What all endpoints share: the coordinators, what tokens are called, and the model's name."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from gateway.bodies import get
from gateway.config import GatewaySettings
from gateway.coordinators import Coordinators
from gateway.errors import no_such_model
from gateway.metrics import GatewayMetrics
from gateway.tokens import TokenTexts
from gateway.vllm_names import VllmNames
from paceline.results import Deployment


class Gateway:
    """An asynchronous context: it has connections while it is open."""

    coordinators: Coordinators
    texts: TokenTexts

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        # Ours, and the same under vLLM's names.
        self.exposition = CollectorRegistry()
        self.exposition.register(self.metrics.registry)
        self.exposition.register(VllmNames(self.metrics, settings.model_name))

    async def __aenter__(self) -> "Gateway":
        settings = self.settings
        self.coordinators = Coordinators(settings.addresses, settings.patience, settings.servers_tls, self.metrics)
        self.texts = TokenTexts(self.coordinators)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.coordinators.close()

    def model_name(self, deployment: Deployment) -> str:
        """What clients call the model."""
        return self.settings.model_name or deployment.target.name

    def check_model(self, body: Mapping[str, Any], deployment: Deployment) -> None:
        """Raises HttpError (404) for a model that is not served."""
        model, known = get(body, "model", str, "a text"), self.model_name(deployment)
        if model not in (None, known, deployment.target.name):
            raise no_such_model(model, known)


def key_of(request: Request) -> str | None:
    """The caller's key; `Guard` has read it."""
    key: str | None = request.state.key
    return key

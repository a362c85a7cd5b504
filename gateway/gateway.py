"""What all endpoints share: the coordinators, what tokens are called, and the model's name."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from gateway.bodies import get
from gateway.config import GatewaySettings
from gateway.coordinators import Coordinators
from gateway.errors import no_such_model
from gateway.tokens import TokenTexts
from paceline.results import Deployment


class Gateway:
    """An asynchronous context: it has connections while it is open."""

    coordinators: Coordinators
    texts: TokenTexts

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings

    async def __aenter__(self) -> "Gateway":
        self.coordinators = Coordinators(self.settings.addresses)
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

"""Applications of Ray Serve, one for each role, so that a change of one restarts no other.

`deploy/ray/serve.yaml` names them: `import_path: paceline.ray.app:target`.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from paceline.ray.process import STOP_TIMEOUT_S, Plan
from paceline.ray.replica import Replica
from paceline.settings import as_flags

HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 2.0, 10.0
Flags = dict[str, Any]


class Arguments(BaseModel):
    """`args` of an application. The services' settings are written as in paceline.toml: a table for each."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field("paceline", description="processes of the same group find each other")
    host: str | None = Field(None, description="address to listen on; default: the node's in Ray")
    port: int = Field(0, ge=0, le=65535, description="the gateway's port; 0: any free one")
    target: Flags = Field(default_factory=dict)
    draft: Flags = Field(default_factory=dict)
    coordinator: Flags = Field(default_factory=dict)
    gateway: Flags = Field(default_factory=dict)


def target(args: Arguments) -> serve.Application:
    return _application("target", args, [Plan("target", as_flags(args.target))])


def draft(args: Arguments) -> serve.Application:
    return _application("draft", args, [Plan("draft", as_flags(args.draft))])


def pair(args: Arguments) -> serve.Application:
    """Runs a target and a draft server in each replica: Ray promises the same GPU only to processes of one replica."""
    plans = [Plan("target", as_flags(args.target)), Plan("draft", as_flags(args.draft))]
    return _application("pair", args, plans)


def coordinator(args: Arguments) -> serve.Application:
    """With `draft: none` it needs no draft servers."""
    servers = {"--target": "target"} | ({} if args.coordinator.get("draft") == "none" else {"--draft": "draft"})
    return _application("coordinator", args, [Plan("coordinator", as_flags(args.coordinator), servers=servers)])


def gateway(args: Arguments) -> serve.Application:
    servers = {"--coordinators": "coordinator"}
    return _application("gateway", args, [Plan("gateway", as_flags(args.gateway), args.port, servers)])


def _application(name: str, args: Arguments, plans: Sequence[Plan]) -> serve.Application:
    deployment = serve.deployment(
        name=name,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        # It has no requests to wait for, but a process that drains.
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=STOP_TIMEOUT_S + 5.0,
    )(Replica)
    return deployment.bind(args.group, args.host, plans)

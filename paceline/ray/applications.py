"""Applications of Ray Serve, one for each role, so that a change of one restarts no other.

`deploy/ray/serve.yaml` names them: `import_path: paceline.ray.applications:target`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from paceline.errors import InvalidArgument
from paceline.ray.process import STOP_TIMEOUT_S, Plan
from paceline.ray.replica import Replica
from paceline.rpc.channel import NO_TLS
from paceline.rpc.tls import Tls

HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 1.0, 10.0
Settings = dict[str, Any]


class Arguments(BaseModel):
    """`args` of an application. The services' settings are written as in paceline.toml: a table for each."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field("paceline", description="processes of the same group find each other")
    host: str | None = Field(None, description="address to listen on; default: the node's in Ray")
    port: int = Field(0, ge=0, le=65535, description="the gateway's port; 0: any free one")
    tls: str | None = Field(
        None, description="serve over TLS with ca.pem, services.pem and services.key in this folder"
    )
    tls_name: str = Field("localhost", description="name in that certificate: processes are called by IP address")
    target: Settings = Field(default_factory=dict)
    draft: Settings = Field(default_factory=dict)
    coordinator: Settings = Field(default_factory=dict)
    gateway: Settings = Field(default_factory=dict)


def target(args: Arguments) -> serve.Application:
    return _application("target", args, [_plan("target", args)])


def draft(args: Arguments) -> serve.Application:
    return _application("draft", args, [_plan("draft", args)])


def pair(args: Arguments) -> serve.Application:
    """Runs a target and a draft server in each replica: Ray promises the same GPU only to processes of one replica."""
    return _application("pair", args, [_plan("target", args), _plan("draft", args)])


def coordinator(args: Arguments) -> serve.Application:
    return _application("coordinator", args, [_plan("coordinator", args, target="target", draft="draft")])


def gateway(args: Arguments) -> serve.Application:
    return _application("gateway", args, [_plan("gateway", args, args.port, coordinators="coordinator")])


def _plan(role: str, args: Arguments, port: int = 0, **servers: str) -> Plan:
    """`servers`: roles by setting. One that is given, such as `draft: none`, replaces the directory's list."""
    given = getattr(args, role)
    if "tls_cert" in given:
        raise InvalidArgument(f"{role}.tls_cert", "its supervisor could not call it; give `tls` instead")
    tls = _tls(args)
    settings = {**_tls_settings(role, tls), **given}
    followed = {setting: of for setting, of in servers.items() if setting not in settings}
    return Plan(role, settings, port, followed, tls)


def _tls(args: Arguments) -> Tls:
    if args.tls is None:
        return NO_TLS
    folder = Path(args.tls)
    return Tls(folder / "services.pem", folder / "services.key", folder / "ca.pem", server_name=args.tls_name)


def _tls_settings(role: str, tls: Tls) -> Settings:
    """Model servers require certificates of their callers."""
    if not tls:
        return {}
    own = {"tls_cert": tls.cert, "tls_key": tls.key}
    if role in ("target", "draft"):
        return {**own, "tls_client_ca": tls.ca}
    to_servers = {"ca": tls.ca, "cert": tls.cert, "key": tls.key, "name": tls.server_name}
    return {**own, **{f"servers_tls_{name}": value for name, value in to_servers.items()}}


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

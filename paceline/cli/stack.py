"""What `paceline up` runs: the flags of each process, checked before any of them starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from gateway.config import GatewaySettings
from paceline.checks import require
from paceline.errors import InvalidArgument
from paceline.keys import KeyRing
from paceline.rpc.channel import NO_TLS, check_address
from paceline.rpc.tls import Tls, find_tls
from paceline.settings import as_flags, make_settings
from target_server.config import TargetSettings

# Of one GPU's memory, where neither says; what they leave is for two CUDA contexts.
TARGET_FRACTION, DRAFT_FRACTION = 0.60, 0.30
# Flags of `paceline up` whose fields have another name in a process's settings.
_TARGET_FLAGS = {"model": "--target-model", "quantization": "--target-quantization"}
_DRAFT_FLAGS = {"model": "--draft-model", "quantization": "--draft-quantization"}
_GATEWAY_FLAGS = {"listen": "--http"}


@dataclass(frozen=True, slots=True)
class Stack:
    """Flags of each process, but for the addresses by which they find one another."""

    target: list[str]
    # None: no draft server.
    draft: list[str] | None
    coordinator: list[str]
    # None: no gateway.
    gateway: list[str] | None
    # The coordinator's address, and the gateway's.
    listen: str
    http_listen: str
    # How to call each of them, and the model servers: by TLS where they serve by it.
    tls: Tls
    http_tls: Tls
    models_tls: Tls
    # Whether callers need API keys.
    has_keys: bool
    # Whether the model servers compute on the same cores, one at a time.
    shares_cores: bool


def make_stack(
    target: Mapping[str, Any] | None = None,
    draft: Mapping[str, Any] | None = None,
    coordinator: Mapping[str, Any] | None = None,
    gateway: Mapping[str, Any] | None = None,
    client_tls: Tls = NO_TLS,
) -> Stack:
    """From the fields of each process's settings that the caller wants to set; all others are the process's own.

    `gateway`: None: there is none. `client_tls`: how to call coordinator and gateway where these serve by TLS; without
    it, as the gateway calls the coordinator, or as the environment says. A draft's model "none", or a coordinator's draft "none": no draft server.

    Raises InvalidArgument naming the flag of `paceline up` and its range, ConfigError for a bad file of keys.
    """
    wants_target, wants_draft = dict(target or {}), dict(draft or {})
    front = make_settings(CoordinatorSettings, coordinator or {}, {})
    # Port 0 would be any free one: then nobody knew where.
    check_address("--listen", front.listen)
    if front.api_keys is not None:
        # A bad file is better known now than when models are loaded.
        KeyRing(front.api_keys)
    has_draft = wants_draft.get("model", "") != "none" and front.draft != "none"
    target_settings = make_settings(TargetSettings, wants_target, _TARGET_FLAGS)
    _share_gpu(target_settings, wants_target, TARGET_FRACTION)
    if has_draft:
        draft_settings = make_settings(DraftSettings, wants_draft, _DRAFT_FLAGS)
        _share_gpu(draft_settings, wants_draft, DRAFT_FRACTION)
    door = None if gateway is None else make_settings(GatewaySettings, gateway, _GATEWAY_FLAGS)
    if door is not None:
        check_address("--http", door.listen)
        require(door.listen != front.listen, "--http", door.listen, "another address than --listen, the coordinator's")
    own_tls = client_tls or (NO_TLS if door is None else door.servers_tls) or find_tls(None)
    if not own_tls and (front.tls or (door is not None and door.tls)):
        raise InvalidArgument(
            "--tls-ca", "is missing: the authority of the certificate, by which the services trust it"
        )
    return Stack(
        target=as_flags(wants_target),
        draft=as_flags(wants_draft) if has_draft else None,
        coordinator=as_flags(coordinator or {}),
        gateway=None if door is None else as_flags(gateway or {}),
        listen=front.listen,
        http_listen="" if door is None else door.listen,
        tls=own_tls if front.tls else NO_TLS,
        http_tls=own_tls if door is not None and door.tls else NO_TLS,
        models_tls=front.servers_tls,
        has_keys=front.api_keys is not None,
        shares_cores=has_draft and (target_settings.device, draft_settings.device) == ("cpu", "cpu"),
    )


def _share_gpu(settings: TargetSettings | DraftSettings, given: dict[str, Any], fraction: float) -> None:
    if settings.device == "cuda" and "gpu_memory_fraction" not in settings.model_fields_set:
        given["gpu_memory_fraction"] = fraction

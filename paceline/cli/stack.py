"""Flags of the services that `paceline up` runs, checked before any starts."""

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

# Default shares of one GPU's memory; the rest is for two CUDA contexts.
TARGET_FRACTION, DRAFT_FRACTION = 0.60, 0.30
# Of a kind on one machine.
MAX_SERVERS = 16
# Flags of `paceline up` with another name than the setting.
_TARGET_FLAGS = {"model": "--target-model"}
_DRAFT_FLAGS = {"model": "--draft-model"}
_GATEWAY_FLAGS = {"listen": "--http-listen"}


@dataclass(frozen=True, slots=True)
class Stack:
    target: list[str]
    # None: no draft server.
    draft: list[str] | None
    # How many of each.
    num_targets: int
    num_drafts: int
    coordinator: list[str]
    # None: no gateway.
    gateway: list[str] | None
    # Addresses of coordinator and gateway.
    listen: str
    http_listen: str
    # Files for calling coordinator, gateway and model servers; empty for those without TLS.
    tls: Tls
    http_tls: Tls
    models_tls: Tls
    # Models that the servers load, by name or path.
    models: tuple[str, ...]
    # Whether callers need API keys.
    has_keys: bool
    # Whether the model servers share cores or a GPU, and so compute in turns.
    shares_device: bool
    # Whether the draft server is in the target server's process.
    colocates_draft: bool


def make_stack(
    target: Mapping[str, Any] | None = None,
    draft: Mapping[str, Any] | None = None,
    coordinator: Mapping[str, Any] | None = None,
    gateway: Mapping[str, Any] | None = None,
    client_tls: Tls = NO_TLS,
    num_targets: int = 1,
    num_drafts: int = 1,
    colocates_draft: bool = True,
) -> Stack:
    """Makes a stack from the given settings of each service.

    `gateway`: None for no gateway. `client_tls`: files for calling coordinator and gateway if they serve over TLS;
    defaults to the gateway's for the coordinator, or to the environment's. A draft model or coordinator's draft "none"
    means no draft server. `colocates_draft`: whether the draft server is in the target server's process,
    if there is one of each, on a CPU.

    Raises InvalidArgument naming the flag of `paceline up`, ConfigError for a bad key file.
    """
    require(1 <= num_targets <= MAX_SERVERS, "--targets", num_targets, f"in [1, {MAX_SERVERS}]")
    require(1 <= num_drafts <= MAX_SERVERS, "--drafts", num_drafts, f"in [1, {MAX_SERVERS}]")
    wants_target, wants_draft = dict(target or {}), dict(draft or {})
    coordinator_settings = make_settings(CoordinatorSettings, coordinator or {}, {})
    # Not port 0: nobody would know which port it is.
    check_address("--listen", coordinator_settings.listen)
    if coordinator_settings.api_keys is not None:
        # Before models are loaded.
        KeyRing(coordinator_settings.api_keys)
    has_draft = wants_draft.get("model", "") != "none" and coordinator_settings.draft != "none"
    target_settings = make_settings(TargetSettings, wants_target, _TARGET_FLAGS)
    _share_gpu(target_settings, wants_target, TARGET_FRACTION / num_targets)
    models = [target_settings.model]
    if has_draft:
        draft_settings = make_settings(DraftSettings, wants_draft, _DRAFT_FLAGS)
        _share_gpu(draft_settings, wants_draft, DRAFT_FRACTION / num_drafts)
        models.append(draft_settings.model)
    gateway_settings = None if gateway is None else make_settings(GatewaySettings, gateway, _GATEWAY_FLAGS)
    if gateway_settings is not None:
        check_address("--http-listen", gateway_settings.listen)
        require(
            gateway_settings.listen != coordinator_settings.listen,
            "--http-listen",
            gateway_settings.listen,
            "another address than --listen, the coordinator's",
        )
    shares_device = num_targets > 1 or (has_draft and target_settings.device == draft_settings.device)
    may_colocate = (
        has_draft and num_targets == num_drafts == 1 and target_settings.device == draft_settings.device == "cpu"
    )
    own_tls = client_tls or (NO_TLS if gateway_settings is None else gateway_settings.servers_tls) or find_tls(None)
    if not own_tls and (coordinator_settings.tls or (gateway_settings is not None and gateway_settings.tls)):
        raise InvalidArgument("--tls-ca", "is missing; it names the authority of the services' certificate")
    return Stack(
        target=as_flags(wants_target),
        draft=as_flags(wants_draft) if has_draft else None,
        num_targets=num_targets,
        num_drafts=num_drafts if has_draft else 0,
        coordinator=as_flags(coordinator or {}),
        gateway=None if gateway_settings is None else as_flags(gateway or {}),
        listen=coordinator_settings.listen,
        http_listen="" if gateway_settings is None else gateway_settings.listen,
        tls=own_tls if coordinator_settings.tls else NO_TLS,
        http_tls=own_tls if gateway_settings is not None and gateway_settings.tls else NO_TLS,
        models_tls=coordinator_settings.servers_tls,
        models=tuple(models),
        has_keys=coordinator_settings.api_keys is not None,
        shares_device=shares_device,
        colocates_draft=may_colocate and colocates_draft,
    )


def _share_gpu(settings: TargetSettings | DraftSettings, given: dict[str, Any], fraction: float) -> None:
    if settings.device == "cuda" and "gpu_memory_utilization" not in settings.model_fields_set:
        given["gpu_memory_utilization"] = fraction

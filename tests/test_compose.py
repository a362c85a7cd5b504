"""The compose files: valid, private, and in step with the services' flags.

`data/compose_spec.json` is the Compose Specification's own schema (github.com/compose-spec, Apache-2.0).
"""

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from gateway.config import GatewaySettings
from paceline.rpc.tls import find_tls
from paceline.settings import parse_settings
from target_server.config import TargetSettings
from tests.certificates import Authority

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "tests/data/compose_spec.json").read_text(encoding="utf-8"))
MODULES = {"draft": "draft_server", "target": "target_server", "coordinator": "coordinator", "gateway": "gateway"}
SETTINGS: dict[str, Any] = {
    "draft": DraftSettings, "target": TargetSettings, "coordinator": CoordinatorSettings, "gateway": GatewaySettings,
}  # fmt: skip
GPU_SERVICES = ("draft", "target")


def load(name: str) -> dict[str, Any]:
    """A compose file with every `${NAME:-default}` at its default."""
    text = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", (ROOT / name).read_text(encoding="utf-8"))
    assert "${" not in text, "a variable without a default"
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def merge(base: Any, override: Any, key: str = "") -> Any:
    """Compose's rules: mappings merge, lists append, commands and single values are replaced."""
    if isinstance(base, dict) and isinstance(override, dict):
        both = {name: merge(base[name], override[name], name) for name in base.keys() & override.keys()}
        return base | override | both
    if isinstance(base, list) and isinstance(override, list) and key not in ("command", "test"):
        return base + override
    return override


BASE = load("docker-compose.yml")
GPU = load("deploy/compose/gpu.yml")
KEYS = load("deploy/compose/keys.yml")
TLS = load("deploy/compose/tls.yml")
MPS = load("deploy/compose/mps.yml")
FILES = {
    "base": BASE,
    "gpu": GPU,
    "merged": merge(BASE, GPU),
    "keys": KEYS,
    "guarded": merge(merge(BASE, GPU), KEYS),
    "tls": TLS,
    "encrypted": merge(BASE, TLS),
    "encrypted and guarded": merge(merge(merge(BASE, GPU), KEYS), TLS),
    "mps": MPS,
}
STACKS = {name: FILES[name]["services"] for name in ("base", "merged", "guarded", "encrypted", "encrypted and guarded")}
STACKS["shared"] = merge(FILES["merged"], MPS)["services"]

each_stack = pytest.mark.parametrize("services", STACKS.values(), ids=STACKS.keys())
each_service = pytest.mark.parametrize("service", MODULES)


def validate(document: dict[str, Any]) -> None:
    jsonschema.validators.validator_for(SCHEMA)(SCHEMA).validate(document)


def argument(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


@functools.cache
def flags_of(module: str) -> set[str]:
    # A bare environment: help in plain text on wide lines, whatever the caller's terminal is.
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    answer = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT, env=environment | {"COLUMNS": "200"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return set(re.findall(r"--[a-z][a-z0-9-]*", answer.stdout))


@pytest.mark.parametrize("document", FILES.values(), ids=FILES.keys())
def test_file_is_valid_compose(document: dict[str, Any]) -> None:
    validate(document)


def test_every_file_on_top_of_the_base_is_tested() -> None:
    assert {file.stem for file in (ROOT / "deploy/compose").glob("*.yml")} == {"gpu", "keys", "tls", "mps"}
    assert [file.name for file in ROOT.glob("*compose*")] == ["docker-compose.yml"]


def test_schema_refuses_a_misspelled_key() -> None:
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        validate({"services": {"draft": {"comand": "python"}}})


@each_stack
def test_services_are_exactly_these(services: dict[str, Any]) -> None:
    assert services.keys() == MODULES.keys()


@each_stack
@each_service
def test_command_uses_only_flags_its_service_has(services: dict[str, Any], service: str) -> None:
    python, dash_m, module, *arguments = services[service]["command"]
    assert (python, dash_m, module) == ("python", "-m", MODULES[service])
    used = {word for word in arguments if word.startswith("--")}
    assert used
    assert used <= flags_of(module)


@each_stack
@each_service
def test_health_check_asks_the_port_its_service_listens_on(services: dict[str, Any], service: str) -> None:
    port = argument(services[service]["command"], "--listen").rpartition(":")[2]
    check = services[service]["healthcheck"]["test"]
    scheme = "http://" if service == "gateway" else ""
    assert check == ["CMD", "python", "-m", "paceline.rpc.health", f"{scheme}localhost:{port}"]


@each_stack
def test_coordinator_calls_the_ports_the_servers_listen_on(services: dict[str, Any]) -> None:
    for server in GPU_SERVICES:
        port = argument(services[server]["command"], "--listen").rpartition(":")[2]
        assert argument(services["coordinator"]["command"], f"--{server}") == f"{server}:{port}"


def test_libraries_write_to_the_volume_because_the_image_is_read_only() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (volume,) = re.findall(r"^VOLUME (\S+)$", dockerfile, re.MULTILINE)
    folders = dict(re.findall(r"(\w+_CACHE_DIR|HF_HOME)=(\S+)", dockerfile))
    folders = {name: folder for name, folder in folders.items() if folder.startswith("/home")}
    assert folders.keys() == {"PACELINE_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME"}
    assert all(Path(folder).is_relative_to(volume) for folder in folders.values())


@each_stack
def test_coordinator_waits_until_both_servers_are_healthy(services: dict[str, Any]) -> None:
    waits = {name: rule["condition"] for name, rule in services["coordinator"]["depends_on"].items()}
    assert waits == dict.fromkeys(GPU_SERVICES, "service_healthy")


@each_stack
def test_the_gateway_calls_the_port_the_coordinator_listens_on(services: dict[str, Any]) -> None:
    port = argument(services["coordinator"]["command"], "--listen").rpartition(":")[2]
    assert argument(services["gateway"]["command"], "--coordinators") == f"coordinator:{port}"


@each_stack
def test_only_coordinator_and_gateway_are_published_and_only_on_loopback(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"coordinator": ["127.0.0.1:50050:50050"], "gateway": ["127.0.0.1:8000:8000"]}
    assert not any("network_mode" in service for service in services.values())


def coordinator_settings(stack: str, monkeypatch: pytest.MonkeyPatch) -> CoordinatorSettings:
    """As the coordinator reads its command and environment in that stack."""
    service = STACKS[stack]["coordinator"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", service["command"][2:])
    return parse_settings(CoordinatorSettings, "coordinator")


@pytest.mark.parametrize("stack", ["base", "merged"])
def test_the_coordinator_says_that_it_asks_for_no_keys(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = coordinator_settings(stack, monkeypatch)
    assert (settings.no_keys, settings.api_keys) == (True, None)


def test_with_the_file_for_keys_it_reads_them_from_a_folder_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = coordinator_settings("guarded", monkeypatch)
    assert not settings.no_keys
    (volume,) = STACKS["guarded"]["coordinator"]["volumes"]
    folder = volume.removesuffix(":ro").rpartition(":")[2]
    assert settings.api_keys == f"{folder}/api_keys"


def test_with_the_file_for_tls_each_service_has_certificates_for_those_it_meets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    issued = Authority(tmp_path / "tls").issue("services")
    found = {}
    for name, kind in SETTINGS.items():
        service = STACKS["encrypted"][name]
        (folder,) = {volume.rpartition(":")[0].rpartition(":")[2] for volume in service["volumes"] if "/tls:" in volume}
        with monkeypatch.context() as environment:
            files = {f"{folder}/{file}": str(path) for file, path in
                     (("ca.pem", issued.ca), ("services.pem", issued.cert), ("services.key", issued.key))}  # fmt: skip
            for variable, value in service["environment"].items():
                if value is not None:
                    environment.setenv(variable, files.get(value, value))
            environment.setattr("sys.argv", service["command"][2:])
            found[name] = parse_settings(kind, name)
            assert find_tls(None) == issued.tls, "health checks"
    assert {name: (bool(each.tls), each.tls.ca is not None) for name, each in found.items()} == {
        "draft": (True, True), "target": (True, True), "coordinator": (True, False), "gateway": (True, False),
    }  # fmt: skip
    assert found["coordinator"].servers_tls == issued.tls
    assert found["gateway"].servers_tls.ca == str(issued.ca)


@each_stack
def test_one_service_builds_the_image_of_all(services: dict[str, Any]) -> None:
    assert {service["image"] for service in services.values()} == {"paceline"}
    assert [name for name, service in services.items() if "build" in service] == ["draft"]
    assert {service["pull_policy"] for service in services.values()} == {"never"}


@each_stack
@each_service
def test_a_container_has_no_privileges_and_writes_nothing_into_its_image(
    services: dict[str, Any], service: str
) -> None:
    found = services[service]
    assert (found["read_only"], found["cap_drop"], found["init"]) == (True, ["ALL"], True)
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["pids_limit"] > 0
    assert found["logging"]["options"].keys() == {"max-size", "max-file"}


def test_only_mps_needs_the_hosts_ipc() -> None:
    for name, services in STACKS.items():
        shared = [service for service, found in services.items() if "ipc" in found]
        assert shared == (list(GPU_SERVICES) if name == "shared" else [])


@each_stack
def test_model_servers_are_not_on_the_network_of_published_ports(services: dict[str, Any]) -> None:
    networks = {name: set(service["networks"]) for name, service in services.items()}
    assert networks == {name: {"inside", "models"} for name in GPU_SERVICES} | {
        name: {"inside", "front"} for name in ("coordinator", "gateway")
    }


def test_the_network_between_services_leads_nowhere_else() -> None:
    assert BASE["networks"]["inside"] == {"internal": True}


@each_stack
def test_both_servers_keep_models_in_one_volume(services: dict[str, Any]) -> None:
    for server in GPU_SERVICES:
        assert "model-cache:/home/paceline/.cache/paceline" in services[server]["volumes"]


@each_stack
@each_service
def test_service_restarts_and_has_time_to_drain(services: dict[str, Any], service: str) -> None:
    assert services[service]["restart"] == "unless-stopped"
    assert services[service]["stop_grace_period"] == "30s"


def test_the_images_build_sees_every_package() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {package.removesuffix("*") for package in found["include"]} <= admitted


def test_both_servers_reserve_the_same_gpu() -> None:
    draft, target = (STACKS["merged"][name]["deploy"]["resources"]["reservations"]["devices"] for name in GPU_SERVICES)
    assert draft == target
    assert [len(device["device_ids"]) for device in draft] == [1]


def test_files_that_the_page_on_operations_shows_go_on_top_of_the_base() -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(shown) == 2
    for document in shown:
        merged = merge(BASE, document)
        validate(merged)
        for name, service in document["services"].items():
            assert set(service.get("networks", ())) <= merged["networks"].keys()
            for variable in service.get("environment", ()):
                prefix = SETTINGS[name].model_config["env_prefix"]
                assert variable.removeprefix(prefix).lower() in SETTINGS[name].model_fields, variable
    [collector] = shown[1]["services"].keys() - MODULES.keys()
    traced = {name: shown[1]["services"][name]["environment"] for name in MODULES}
    assert traced == {name: {f"PACELINE_{name.upper()}_TRACES": f"{collector}:4317"} for name in MODULES}
    assert all("inside" in BASE["services"][name]["networks"] for name in MODULES)


def test_gpu_memory_fractions_leave_room_for_two_cuda_contexts() -> None:
    fractions = [
        float(argument(STACKS["merged"][name]["command"], "--gpu-memory-utilization")) for name in GPU_SERVICES
    ]
    assert sum(fractions) <= 0.95

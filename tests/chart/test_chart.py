"""The Helm chart: what it renders is valid for Kubernetes, private, and in step with the services and the image.

Nothing here starts a cluster: whether probes and rollouts do what they should is not tested.
"""

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from gateway.config import GatewaySettings
from paceline.keys import ENVIRONMENT as KEY
from paceline.keys import is_private_name, make_key
from paceline.rpc.address_source import DNS, AddressSource
from paceline.rpc.health import LIVE
from paceline.rpc.server import DRAIN_S
from paceline.rpc.tls import ENVIRONMENT as TLS
from paceline.rpc.tls import find_tls
from paceline.settings import parse_settings
from target_server.config import TargetSettings
from tests.certificates import Authority
from tests.chart.rendered import (
    CHART,
    KUBERNETES,
    PEER,
    VALUES,
    Rendered,
    argument,
    container_of,
    environment_of,
    labels_of,
    port_of,
    role_of,
)
from tests.test_compose import MODULES, flags_of

WHY = "the chart's tools are not installed: make chart"
helm_python = pytest.importorskip("helm_python", reason=WHY)
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=WHY)

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "draft": DraftSettings, "target": TargetSettings, "coordinator": CoordinatorSettings, "gateway": GatewaySettings,
}  # fmt: skip


@pytest.fixture(scope="module", params=VALUES.values(), ids=VALUES.keys())
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return Rendered(request.param)


@pytest.fixture(scope="module")
def everything() -> Rendered:
    return Rendered(VALUES["everything"])


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_helm_has_no_more_to_say_than_that_there_is_no_icon(values: dict[str, Any]) -> None:
    report = helm_python.lint(CHART, values, strict=True, kube_version=f"v{KUBERNETES}.0")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


def test_every_document_is_valid_and_no_name_is_there_twice(rendered: Rendered) -> None:
    for document in rendered.documents:
        validate(document)
    names = Counter((each["kind"], each["metadata"]["name"]) for each in rendered.documents)
    assert set(names.values()) == {1}


@pytest.mark.parametrize(("kind", "path", "field", "misspelled"), [
    ("Deployment", ("spec", "template", "spec", "containers", 0), "readinessProbe", "readynessProbe"),
    ("Deployment", ("spec", "template", "spec", "containers", 0, "startupProbe", "grpc"), "service", "name"),
    ("Deployment", ("spec", "strategy", "rollingUpdate"), "maxSurge", "maxSurges"),
    ("Service", ("spec",), "publishNotReadyAddresses", "publishUnreadyAddresses"),
    ("NetworkPolicy", ("spec",), "podSelector", "selector"),
    ("PodDisruptionBudget", ("spec",), "maxUnavailable", "maxUnavailible"),
])  # fmt: skip
def test_a_misspelled_field_is_found(kind: str, path: tuple[Any, ...], field: str, misspelled: str) -> None:
    document = copy.deepcopy(Rendered({}).of_kind(kind)[0])
    validate(document)
    inner: Any = document
    for step in path:
        inner = inner[step]
    inner[misspelled] = inner.pop(field)
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(document)


def test_there_are_as_many_of_each_role_as_the_values_say() -> None:
    def names(values: dict[str, Any]) -> list[str]:
        return sorted(each["metadata"]["name"] for each in Rendered(values).deployments)

    assert names({}) == ["it-coordinator", "it-draft-default", "it-gateway", "it-target"]
    assert names({"drafts": []}) == ["it-coordinator", "it-gateway", "it-target"]
    of_a_cell = ("coordinator", "draft-large", "draft-small", "gateway", "target")
    assert names(VALUES["everything"]) == [f"it-c{cell}-{name}" for cell in (0, 1) for name in of_a_cell]


def test_commands_and_variables_are_those_that_the_services_have(rendered: Rendered) -> None:
    for deployment in rendered.deployments:
        role, container = role_of(deployment), container_of(deployment)
        assert container["command"][:3] == ["python", "-m", MODULES[role]]
        flags = {word for word in [*container["command"], *container["args"]] if word.startswith("--")}
        assert flags <= flags_of(MODULES[role])
        prefix = f"PACELINE_{role.upper()}_"
        known = {prefix + field.upper() for field in SETTINGS[role].model_fields}
        assert environment_of(deployment).keys() <= known | {*TLS, KEY, "HF_TOKEN"}
        assert port_of(deployment) == container["ports"][0]["containerPort"]


def test_names_in_dns_lead_to_the_ready_pods_that_they_should(rendered: Rendered) -> None:
    for deployment in rendered.deployments:
        for flag, role in {"coordinator": (("--target", "target"), ("--draft", "draft")),
                           "gateway": (("--coordinators", "coordinator"),)}.get(role_of(deployment), ()):  # fmt: skip
            text = argument(deployment, flag)
            if text == "none":
                assert not any(role_of(each) == "draft" for each in rendered.deployments)
                continue
            assert not AddressSource(flag, text).is_fixed
            name, _, port = text.removeprefix(DNS).rpartition(":")
            service = rendered.services[name]
            assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", False)
            expected = [
                each for each in rendered.deployments
                if role_of(each) == role and labels_of(each)["paceline/cell"] == labels_of(deployment)["paceline/cell"]
            ]  # fmt: skip
            assert rendered.selected(service["selector"]) == expected != []
            assert {port_of(each) for each in expected} == {int(port)}


def test_clients_reach_the_gateways_of_all_cells(rendered: Rendered) -> None:
    service = rendered.services["it-gateway"]
    gateways = [each for each in rendered.deployments if role_of(each) == "gateway"]
    assert rendered.selected(service["selector"]) == gateways
    assert service["ports"][0]["targetPort"] == container_of(gateways[0])["ports"][0]["name"] == "main"


def test_a_rollout_stops_nothing_before_another_is_ready_and_a_drain_takes_one_pod(rendered: Rendered) -> None:
    budgets = [each["spec"] for each in rendered.of_kind("PodDisruptionBudget")]
    assert {each["maxUnavailable"] for each in budgets} == {1}
    assert [rendered.selected(each["selector"]["matchLabels"]) for each in budgets] == [
        [each] for each in rendered.deployments
    ]
    for deployment in rendered.deployments:
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        pod = deployment["spec"]["template"]["spec"]
        assert rendered.selected(deployment["spec"]["selector"]["matchLabels"]) == [deployment]
        (spread,) = pod["topologySpreadConstraints"]
        assert rendered.selected(spread["labelSelector"]["matchLabels"]) == [deployment]
        # A model server whose device thread hangs exits 5 s after draining; a gateway waits for 5 s first.
        assert pod["terminationGracePeriodSeconds"] > DRAIN_S + 10


def test_only_coordinators_of_the_cell_reach_model_servers(rendered: Rendered) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in rendered.of_kind("NetworkPolicy")}
    protected: list[Any] = []
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress"]
        (expression,) = policy["podSelector"]["matchExpressions"]
        assert (expression["key"], expression["operator"]) == ("app.kubernetes.io/component", "In")
        models = [
            each for each in rendered.selected(policy["podSelector"]["matchLabels"])
            if role_of(each) in expression["values"]
        ]  # fmt: skip
        protected += models
        calls, *metrics = policy["ingress"]
        assert {each["port"] for each in calls["ports"]} >= {port_of(each) for each in models}
        (peer,) = calls["from"]
        (caller,) = rendered.selected(peer["podSelector"]["matchLabels"])
        assert role_of(caller) == "coordinator"
        assert {labels_of(each)["paceline/cell"] for each in [caller, *models]} == {labels_of(caller)["paceline/cell"]}
        assert [(rule["ports"], rule["from"]) for rule in metrics] in ([], [([{"port": 9464}], [PEER])])
    if policies:
        assert {each["metadata"]["name"] for each in protected} == {
            each["metadata"]["name"] for each in rendered.deployments if role_of(each) in ("target", "draft")
        }


def test_a_pod_may_do_no_more_than_the_image_needs(rendered: Rendered) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (uid,) = re.findall(r"useradd .*--uid (\d+)", dockerfile)
    (cache,) = re.findall(r"PACELINE_CACHE_DIR=(\S+)", dockerfile)
    for deployment in rendered.deployments:
        pod, container = deployment["spec"]["template"]["spec"], container_of(deployment)
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == int(uid)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert not pod["automountServiceAccountToken"]
        # Else PACELINE_GATEWAY_PORT would be there, and look like a setting.
        assert not pod["enableServiceLinks"]
        assert "cpu" not in container["resources"].get("limits", {}), "threads wait for those that are throttled"
        writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        assert writable == {"/tmp", cache}
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_probes_restart_only_what_does_not_respond(rendered: Rendered) -> None:
    for deployment in rendered.deployments:
        container, port = container_of(deployment), port_of(deployment)
        startup, live, ready = (container[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))
        encrypted = any(each["name"] == "tls" for each in container["volumeMounts"])
        if role_of(deployment) == "gateway":
            scheme = "HTTPS" if encrypted else "HTTP"
            asked = [each["httpGet"] for each in (startup, live, ready)]
            assert [each["path"] for each in asked] == ["/health", "/health", "/ready"]
            assert {(each["port"], each["scheme"]) for each in asked} == {("main", scheme)}
        elif encrypted:
            ask = ["python", "-m", "paceline.rpc.health", f"localhost:{port}"]
            assert [each["exec"]["command"] for each in (startup, live, ready)] == [[*ask, LIVE], [*ask, LIVE], ask]
        else:
            asked = [(each["grpc"]["port"], each["grpc"]["service"]) for each in (startup, live, ready)]
            assert asked == [(port, LIVE), (port, LIVE), (port, "")]
        patience_s = startup["periodSeconds"] * startup["failureThreshold"]
        assert patience_s >= float(environment_of(deployment).get("PACELINE_COORDINATOR_CONNECT_TIMEOUT", 0))


def test_secrets_are_used_where_they_are_named_and_nowhere_else(everything: Rendered) -> None:
    assert "secret" not in str(Rendered({}).documents).lower()
    for deployment in everything.deployments:
        role, environment = role_of(deployment), environment_of(deployment)
        is_public = role in ("coordinator", "gateway")
        prefix, keys = f"PACELINE_{role.upper()}_", "/etc/paceline/keys/api_keys"
        assert environment.get(f"{prefix}API_KEYS") == (keys if is_public else None)
        assert f"{prefix}NO_KEYS" not in environment
        assert (KEY in environment) is (role == "gateway")
        assert ("HF_TOKEN" in environment) is not is_public
        mounted = {each["name"] for each in container_of(deployment)["volumeMounts"]}
        assert {"keys", "tls"} & mounted == ({"keys", "tls"} if is_public else {"tls"})
        # Model servers have no keys: a caller needs a certificate.
        assert (f"{prefix}TLS_CLIENT_CA" in environment) is not is_public
        if is_public:
            assert environment[f"{prefix}SERVERS_TLS_NAME"] == "services"


def test_each_service_takes_its_flags_and_variables(
    everything: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    issued, keys = Authority(tmp_path / "tls").issue("services"), tmp_path / "api_keys"
    make_key(keys, "alice")
    files = {"ca.pem": issued.ca, "services.pem": issued.cert, "services.key": issued.key, "api_keys": keys}
    for deployment in everything.deployments:
        container = container_of(deployment)
        with monkeypatch.context() as patched:
            for name, value in environment_of(deployment).items():
                if isinstance(value, str):
                    patched.setenv(name, str(files.get(value.rpartition("/")[2], value)))
            # Names of the cluster lead nowhere here.
            words = [re.sub("^dns:[^:]*", "localhost", word) for word in [*container["command"], *container["args"]]]
            patched.setattr("sys.argv", words[2:])
            settings = parse_settings(SETTINGS[role_of(deployment)], MODULES[role_of(deployment)])
            asked_in_probes = find_tls(None)
        assert (settings.metrics, settings.tls.cert) == ("0.0.0.0:9464", str(issued.cert))
        assert asked_in_probes.cert == str(issued.cert)
        if role_of(deployment) in ("coordinator", "gateway"):
            assert (settings.api_keys, settings.no_keys) == (str(keys), False)
            assert settings.servers_tls.server_name == "services"
            assert settings.servers_tls.ca == str(issued.ca)
        else:
            assert settings.tls.ca == str(issued.ca)


def test_gateways_without_keys_serve_each_name_of_their_service() -> None:
    rendered = Rendered({})
    service = "it-gateway"
    assert service in rendered.services
    gateway = next(each for each in rendered.deployments if role_of(each) == "gateway")
    settings = GatewaySettings(allowed_hosts=environment_of(gateway)["PACELINE_GATEWAY_ALLOWED_HOSTS"])
    for name in (service, f"{service}.here", f"{service}.here.svc", f"{service}.here.svc.cluster.local"):
        assert settings.allows_host(name) or is_private_name(name), name


@pytest.mark.parametrize(("values", "claims", "created"), [
    ({}, [], []),
    ({"models": {"size": "50Gi"}}, ["it-models"], ["it-models"]),
    ({"models": {"claim": "mine", "size": "50Gi"}}, ["mine"], []),
])  # fmt: skip
def test_model_servers_share_a_volume_if_there_is_one(
    values: dict[str, Any], claims: list[str], created: list[str]
) -> None:
    rendered = Rendered(values)
    assert [each["metadata"]["name"] for each in rendered.of_kind("PersistentVolumeClaim")] == created
    for deployment in rendered.deployments:
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        used = [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]
        assert used == (claims if role_of(deployment) in ("target", "draft") else [])

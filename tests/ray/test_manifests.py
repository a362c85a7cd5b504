"""What is deployed is what Ray and the applications understand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.errors import InvalidArgument

schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed: `make ray` installs it")
FOLDER = Path(__file__).parent.parent.parent / "deploy" / "ray"


def configs() -> Iterator[Any]:
    yield pytest.param(yaml.safe_load((FOLDER / "serve.yaml").read_text()), id="serve.yaml")
    service = next(yaml.safe_load_all((FOLDER / "rayservice.yaml").read_text()))
    yield pytest.param(yaml.safe_load(service["spec"]["serveConfigV2"]), id="rayservice.yaml")


@pytest.mark.parametrize("config", list(configs()))
def test_manifests_name_applications_and_their_deployments(config: dict[str, Any]) -> None:
    from paceline.ray import applications

    for each in schema.ServeDeploySchema.model_validate(config).applications:
        build = getattr(applications, each.import_path.removeprefix("paceline.ray.applications:"))
        built = build(applications.Arguments.model_validate(each.args))
        assert [deployment.name for deployment in each.deployments] == [built._bound_deployment.name]


def test_a_setting_that_names_servers_replaces_the_directorys_list() -> None:
    from paceline.ray import applications

    def followed(build: Any, **settings: Any) -> Any:
        _, _, plans = build(applications.Arguments.model_validate(settings))._bound_deployment.init_args
        return plans[0].servers

    assert followed(applications.coordinator) == {"target": "target", "draft": "draft"}
    assert followed(applications.coordinator, coordinator={"draft": "none"}) == {"target": "target"}
    assert followed(applications.gateway, gateway={"coordinators": "10.0.0.1:50050"}) == {}


def test_tls_reaches_every_service_and_its_supervisor() -> None:
    from paceline.ray import applications

    args = applications.Arguments(tls="/tls", tls_name="paceline")
    for role in ("target", "draft", "coordinator", "gateway"):
        _, _, (plan,) = getattr(applications, role)(args)._bound_deployment.init_args
        # The services' own names for it.
        settings = {"tls_cert", "tls_key"} | (
            {"tls_client_ca"}
            if role in ("target", "draft")
            else {f"servers_tls_{name}" for name in ("ca", "cert", "key", "name")}
        )
        assert (set(plan.settings), plan.tls.server_name) == (settings, "paceline")
    with pytest.raises(InvalidArgument, match="give `tls` instead"):
        applications.gateway(applications.Arguments(gateway={"tls_cert": "own.pem"}))

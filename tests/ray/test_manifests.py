"""What is deployed is what Ray and the applications understand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed: `make ray` installs it")
FOLDER = Path(__file__).parent.parent.parent / "deploy" / "ray"


def configs() -> Iterator[Any]:
    yield pytest.param(yaml.safe_load((FOLDER / "serve.yaml").read_text()), id="serve.yaml")
    service = next(yaml.safe_load_all((FOLDER / "rayservice.yaml").read_text()))
    yield pytest.param(yaml.safe_load(service["spec"]["serveConfigV2"]), id="rayservice.yaml")


@pytest.mark.parametrize("config", list(configs()))
def test_manifests_name_applications_and_their_deployments(config: dict[str, Any]) -> None:
    from paceline.ray import app

    for each in schema.ServeDeploySchema.model_validate(config).applications:
        build = getattr(app, each.import_path.removeprefix("paceline.ray.app:"))
        built = build(app.Arguments.model_validate(each.args))
        assert [deployment.name for deployment in each.deployments] == [built._bound_deployment.name]

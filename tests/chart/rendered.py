"""The chart with values, as the cluster would get it."""

from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy/helm/paceline"
KUBERNETES = "1.34"
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example/paceline", "tag": "abc", "pullPolicy": "Always"},
    "target": {
        "replicas": 3, "args": ["--device", "cuda"],
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "32Gi"}},
        "pod": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    },
    "drafts": [
        {"name": name, "replicas": 2, "model": f"models/{name}", "resources": {"requests": {"memory": "2Gi"}}}
        for name in ("small", "large")
    ],
    "coordinator": {"args": ["--max-num-seqs", "64"]},
    "gateway": {"args": ["--served-model-name", "ours"], "pod": {"imagePullSecrets": [{"name": "registry"}]}},
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"example.com/scheme": "internal"}},
    "models": {"size": "50Gi", "storageClass": "fast", "tokenSecret": "hugging-face"},
    "keysSecret": "keys",
    "tls": {"secret": "certificates", "name": "services"},
    "networkPolicy": {"metricsFrom": [PEER]},
    "cells": 2,
}  # fmt: skip
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "no drafts, no policy, own claim": {
        "drafts": [], "networkPolicy": {"enabled": False}, "models": {"claim": "mine", "size": "1Gi"},
    },
    "keys without TLS": {"keysSecret": "keys"},
    "TLS without keys": {"tls": {"secret": "certificates"}},
}  # fmt: skip


class Rendered:
    def __init__(self, values: dict[str, Any]) -> None:
        import helm_python

        texts = helm_python.Chart.load(CHART).render(values, name="it", namespace="here")
        self.documents: list[dict[str, Any]] = [
            document for text in texts.values() for document in yaml.safe_load_all(text) if document
        ]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.documents if each["kind"] == kind]

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each["spec"] for each in self.of_kind("Service")}

    @property
    def deployments(self) -> list[dict[str, Any]]:
        return self.of_kind("Deployment")

    def selected(self, labels: dict[str, str]) -> list[dict[str, Any]]:
        """The deployments whose pods have the labels."""
        return [each for each in self.deployments if labels.items() <= labels_of(each).items()]


def labels_of(deployment: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def role_of(deployment: dict[str, Any]) -> str:
    return labels_of(deployment)["app.kubernetes.io/component"]


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def argument(deployment: dict[str, Any], flag: str) -> str:
    container = container_of(deployment)
    words = [*container["command"], *container["args"]]
    return str(words[words.index(flag) + 1])


def port_of(deployment: dict[str, Any]) -> int:
    return int(argument(deployment, "--listen").rpartition(":")[2])


def environment_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container_of(deployment)["env"]}

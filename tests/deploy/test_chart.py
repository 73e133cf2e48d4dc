"""The Helm chart, rendered by Helm's own library and compared with what Kubernetes takes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_container import FINAL, PROJECT

CHART = Path(__file__).parents[2] / "deploy/chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
ALL_ON: dict[str, Any] = {
    "config": "memory: {sessions: '${MEMORY_URL}', work: '${MEMORY_WORK}'}\n",
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "server": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]},
    "service": {"annotations": {"of": "the service"}},
}
ALL_OFF: dict[str, Any] = {
    "worker": {"replicas": 0},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
}


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifests; skips the test, and says so, where nothing renders them."""
    if binary := shutil.which("helm"):
        command = [binary, "template", "demo", str(CHART), "--namespace", "calls", "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts = [done.stdout]
    else:
        helm = pytest.importorskip("helm_python", reason="neither helm nor helm-python-sdk is installed")
        with helm.Chart.load(str(CHART)) as chart:
            texts = list(chart.render(values, name="demo", namespace="calls").values())
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


@pytest.fixture(params=[{}, ALL_ON, ALL_OFF], ids=["as it comes", "all on", "all off"])
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(request.param)


def of(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] == kind]


def containers(manifests: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for deployment in of(manifests, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


def test_kubernetes_takes_each_manifest(manifests: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    newest = validate.latest_version()
    for manifest in manifests:
        if manifest["kind"] != "ServiceMonitor":  # whose schema is the operator's own
            validate.validate(manifest, newest, strict=True)


def test_what_selects_fits_what_is_selected(manifests: list[dict[str, Any]]) -> None:
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of(manifests, "Deployment")
    }
    for one in of(manifests, "Deployment"):
        assert one["spec"]["selector"]["matchLabels"] == pods[one["metadata"]["name"]]
    (service,) = of(manifests, "Service")
    assert service["spec"]["selector"] == pods["demo-server"]
    for policy in of(manifests, "NetworkPolicy"):
        assert policy["spec"]["podSelector"]["matchLabels"] == pods[policy["metadata"]["name"]]
    for budget in of(manifests, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] == pods["demo-server"]
    for monitor in of(manifests, "ServiceMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_pods_run_as_the_image_does_and_write_where_it_does(manifests: list[dict[str, Any]]) -> None:
    user, group = map(int, FINAL.last("USER").rest.split(":"))
    for pod, container in containers(manifests):
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (user, group)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert {"/tmp", FINAL.last("VOLUME").rest} <= mounted.keys()
        assert set(mounted.values()) == {each["name"] for each in pod["volumes"]}
        assert container["image"] == f"turnkeeper:{PROJECT['version']}"


def test_a_server_has_the_time_that_its_end_takes(manifests: list[dict[str, Any]]) -> None:
    (pod, server), *workers = containers(manifests)
    (_, wait) = server["lifecycle"]["preStop"]["exec"]["command"]
    drain, grace, write = 2, 6, 3
    assert pod["terminationGracePeriodSeconds"] > int(wait) + drain + grace + write
    assert {server[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/healthz"}
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert all("livenessProbe" not in worker for _, worker in workers)


def test_a_configuration_of_ones_own_is_the_one_that_is_read() -> None:
    manifests = rendered(ALL_ON)
    (config,) = of(manifests, "ConfigMap")
    assert config["data"] == {"turnkeeper.yaml": ALL_ON["config"]}
    for _, container in containers(manifests):
        values = [each["value"] for each in container["env"] if each["name"] == "TURNKEEPER_CONFIG"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "config"]
        assert values == [f"{mount['mountPath']}/turnkeeper.yaml"]


def test_autoscaling_owns_the_number_of_servers() -> None:
    manifests = rendered(ALL_ON)
    (scaler,) = of(manifests, "HorizontalPodAutoscaler")
    (server,) = [one for one in of(manifests, "Deployment") if one["metadata"]["name"] == "demo-server"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == server["metadata"]["name"]
    assert "replicas" not in server["spec"]
    metric = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert f"`{metric}`" in (CHART.parents[1] / "docs/metrics.md").read_text()


def test_the_chart_is_of_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (PROJECT["version"], PROJECT["version"])


def test_the_chart_holds_no_secret() -> None:
    texts = [path.read_text() for path in CHART.rglob("*.*")]
    assert VALUES["secret"]
    assert not any("kind: Secret" in text for text in texts)

"""The Helm chart: linted and rendered by a real helm, and what it renders is what Kubernetes' own schemas want."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_kit import check_command

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "buckram"
URI = "metadata.uri=etcd://etcd:2379/buckram"
EVERYTHING = (
    URI,
    "bookies.replicas=5",
    "bookies.antiAffinity=hard",
    "bookies.storage.storageClass=fast",
    "bookies.environment.BUCKRAM_BOOKIE_METRICS_NAMES=both",
    "bookies.nodeSelector.disk=ssd",
    "bookies.tolerations[0].key=disk",
    "bookies.tolerations[0].operator=Exists",
    "bookies.topologySpreadConstraints[0].maxSkew=1",
    "bookies.topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone",
    "bookies.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    "image.pullSecrets[0].name=registry",
    "security.tlsSecret=tls",
    "security.tokenSecret=token",
    "security.logins=token certificate",
    "security.authorisation=on",
    "networkPolicy.clients[0].podSelector.matchLabels.app=shop",
    "networkPolicy.monitoring[0].namespaceSelector.matchLabels.name=monitoring",
    "podMonitor.enabled=true",
    "gateway.enabled=true",
    "podMonitor.labels.release=prometheus",
)
SECRET = ("metadata.existingSecret=buckram-uri", "autorecovery.enabled=false", "janitor.enabled=false")
SMALL = (
    *SECRET,
    "exporter.enabled=false",
    "networkPolicy.enabled=false",
    "metadata.init=false",
    "bookies.antiAffinity=none",
)
OLDEST = "1.25.0"
"""`kubeVersion` of the chart."""
NEWEST = "1.35.0"


@pytest.fixture(scope="module")
def helm() -> str:
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        pytest.skip("NO HELM HERE: `make setup-all` builds it, where there is Go")
    return found


def asked(helm: str, verb: str, *values: str) -> subprocess.CompletedProcess[str]:
    words = [word for value in values for word in ("--set", value)]
    # A helm that was built from its module takes itself to be of Kubernetes 1.20.
    version = ["--kube-version", NEWEST]
    command = [helm, verb, *(["logs"] if verb == "template" else []), str(CHART), *version, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(helm: str, *values: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="NO YAML HERE: `make setup-all` brings kubernetes-validate")
    done = asked(helm, "template", *values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in documents if one["kind"] == kind]


@pytest.mark.parametrize(
    "values", [(URI,), EVERYTHING, SECRET, SMALL], ids=["default", "everything", "secret", "small"]
)
def test_kubernetes_takes_what_it_renders(helm: str, values: tuple[str, ...]) -> None:
    validating = pytest.importorskip("kubernetes_validate", reason="NO SCHEMAS HERE: `make setup-all` brings them")
    documents = rendered(helm, *values)
    for version in (OLDEST, validating.latest_version()):
        for one in documents:
            if not one["apiVersion"].startswith("monitoring.coreos.com/"):
                validating.validate(one, version, strict=True)


def test_lint_finds_nothing(helm: str) -> None:
    done = asked(helm, "lint", URI)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_parts_are_there_and_select_their_pods(helm: str) -> None:
    documents = rendered(helm, *EVERYTHING)
    kinds = sorted(one["kind"] for one in documents)
    assert kinds == [
        *["Deployment"] * 5,
        "Job",
        "NetworkPolicy",
        "PodDisruptionBudget",
        *["PodMonitor"] * 2,
        *["Service"] * 2,
        "StatefulSet",
    ]
    (bookies,) = of_kind(documents, "StatefulSet")
    pods = bookies["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "PodMonitor", "NetworkPolicy"):
        one = next(one for one in of_kind(documents, kind) if one["metadata"]["name"].endswith("-bookie"))
        selector = one["spec"].get("selector") or one["spec"]["podSelector"]
        chosen = selector.get("matchLabels", selector)
        assert chosen.items() <= pods.items(), kind
        for other in of_kind(documents, "Deployment"):
            labels = other["spec"]["template"]["metadata"]["labels"]
            assert not chosen.items() <= labels.items(), f"{kind} selects {labels}"
    assert bookies["spec"]["serviceName"] in [one["metadata"]["name"] for one in of_kind(documents, "Service")]
    running = [each["spec"]["template"] for each in (*of_kind(documents, "Deployment"), bookies)]
    for one in (*of_kind(documents, "PodMonitor"), *of_kind(documents, "Service")):
        selector = one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        (chosen,) = [each for each in running if selector.items() <= each["metadata"]["labels"].items()]
        ports = {port["name"] for port in chosen["spec"]["containers"][0]["ports"]}
        wanted = [each["port"] for each in one["spec"].get("podMetricsEndpoints", ())]
        wanted += [each["targetPort"] for each in one["spec"].get("ports", ())]
        assert wanted
        assert set(wanted) <= ports


def test_a_pod_is_announced_before_it_goes(helm: str) -> None:
    (bookies,) = of_kind(rendered(helm, URI, "bookies.maintenance=30m"), "StatefulSet")
    pod = bookies["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert 'bookie maintenance "$POD_NAME" --for 30m' in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "--end" in container["lifecycle"]["postStart"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] > 60, "the maintenance may take a minute to be asked for"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_every_command_of_the_chart_exists(helm: str) -> None:
    """The arguments of containers and hooks are commands of this release, with options that it has."""
    found = [
        one["spec"]["template"]["spec"]["containers"][0] for one in rendered(helm, URI) if "template" in one["spec"]
    ]
    lines = [container["args"] for container in found]
    hooks = [one["exec"]["command"][-1] for container in found for one in container.get("lifecycle", {}).values()]
    lines += [line.partition("buckram ")[2].partition(" ||")[0].replace('"', "").split() for line in hooks]
    assert len(lines) == 8
    for words in lines:
        check_command(words)


def test_a_private_key_is_copied_to_where_no_other_can_read_it(helm: str) -> None:
    for one in rendered(helm, *EVERYTHING):
        if one["kind"] in ("StatefulSet", "Deployment"):
            pod = one["spec"]["template"]["spec"]
            assert "umask 0077" in pod["initContainers"][0]["command"][-1]
            mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
            assert "tls" in mounts
            assert "tls-secret" not in mounts


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((), "metadata.uri is needed"),
        (("metadata.uri=sqlite:///x.db",), "metadata"),
        ((URI, "bookies.replicas=0"), "replicas"),
        ((URI, "bookies.antiAffinity=maybe"), "antiAffinity"),
        ((URI, "bookies.maintenance=long"), "maintenance"),
        ((URI, "bookies.terminationGracePeriodSeconds=5"), "terminationGracePeriodSeconds"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: str, values: tuple[str, ...], said: str) -> None:
    done = asked(helm, "template", *values)
    assert done.returncode != 0
    assert said in done.stderr


def test_its_version_is_that_of_the_program() -> None:
    import tomllib

    version = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]["version"]
    text = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {version}\n" in text
    assert f'\nappVersion: "{version}"\n' in text

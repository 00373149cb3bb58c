"""config/kubernetes.yaml agrees with docs/Dockerfile and has settings that are accepted. No Kubernetes is asked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from kzconsumer.settings.settings import Settings
from kzconsumer.status.status_server import ROUTES

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docs" / "Dockerfile").read_text()
CONFIG_MAP, DEPLOYMENT = yaml.safe_load_all((ROOT / "config" / "kubernetes.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(MEMBER,) = POD["containers"]
MOUNTS = {each["mountPath"]: each for each in MEMBER["volumeMounts"]}


def settings() -> Settings:
    return Settings.from_dict(tomllib.loads(CONFIG_MAP["data"]["group.toml"]), source="kubernetes.yaml")


def test_the_labels_select_the_pods() -> None:
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == DEPLOYMENT["spec"]["template"]["metadata"]["labels"]


def test_the_image_reads_the_group_file_where_it_is_mounted() -> None:
    (path,) = re.findall(r'^CMD \["--config", "(.+)"\]$', DOCKERFILE, re.MULTILINE)
    folder, name = str(Path(path).parent), Path(path).name
    assert name in CONFIG_MAP["data"]
    volumes = {each["name"]: each for each in POD["volumes"]}
    assert set(volumes) == {each["name"] for each in MOUNTS.values()}
    assert volumes[MOUNTS[folder]["name"]]["configMap"]["name"] == CONFIG_MAP["metadata"]["name"]


def test_a_changed_group_file_reaches_the_member() -> None:
    """Kubernetes updates what it mounts as a directory, and never what it mounts by subPath."""
    assert not any("subPath" in each for each in MOUNTS.values())
    inside = [each for each in MOUNTS if any(each != other and Path(each).is_relative_to(other) for other in MOUNTS)]
    assert inside == []  # no directory can be made in one that is read-only


def test_prometheus_can_reach_the_status_page() -> None:
    (listen,) = [each["value"] for each in MEMBER["env"] if each["name"] == "KZCONSUMER__STATUS__LISTEN"]
    (listen_of_image,) = re.findall(r"KZCONSUMER__STATUS__LISTEN=(\S+)", DOCKERFILE)
    address, _, port = listen.rpartition(":")
    assert address == "0.0.0.0"
    assert port == listen_of_image.rpartition(":")[2]  # where the probes ask
    assert [each["containerPort"] for each in MEMBER["ports"]] == [int(port)]
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": port}


def test_what_the_member_writes_to_is_a_volume_of_its_user() -> None:
    (working,) = re.findall(r'^VOLUME \["(.+)"\]$', DOCKERFILE, re.MULTILINE)
    (user,) = re.findall(r"useradd --system --uid (\d+)", DOCKERFILE)
    assert {working, "/tmp"} <= set(MOUNTS)
    # Only in memory it has the sticky bit, without which `own_directory` refuses what is below it.
    (temporary,) = (each for each in POD["volumes"] if each["name"] == MOUNTS["/tmp"]["name"])
    assert temporary["emptyDir"]["medium"] == "Memory"
    assert POD["securityContext"]["runAsUser"] == POD["securityContext"]["fsGroup"] == int(user)


def test_the_secrets_that_the_settings_name_are_mounted() -> None:
    brokers = settings().brokers
    assert brokers.tls.ca is not None
    assert brokers.sasl.password_file is not None
    assert {str(Path(file).parent) for file in (brokers.tls.ca, brokers.sasl.password_file)} <= set(MOUNTS)


def test_the_probes_ask_paths_of_the_server_at_the_address_of_the_image() -> None:
    (listen,) = re.findall(r"KZCONSUMER__STATUS__LISTEN=(\S+)", DOCKERFILE)
    for probe in ("livenessProbe", "readinessProbe"):
        (url,) = re.findall(r"'http://([^']+)'", MEMBER[probe]["exec"]["command"][2])
        assert url.startswith(listen)
        assert url.removeprefix(listen) in ROUTES


def test_kubernetes_waits_for_a_stop() -> None:
    assert POD["terminationGracePeriodSeconds"] > settings().stop.deadline

"""examples/scale: the files of a fleet on three hosts fit one another and what commands write.

Neither Docker nor Kubernetes is at hand here: what their own checks refuse first is checked, the keys that
each kind must have and the names by which parts refer to one another.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sedge_cloud.__main__ import main
from sedge_cloud.config import load_cloud

yaml: Any = import_module("yaml")
FOLDER = Path(__file__).parents[1] / "examples" / "scale"
API_VERSIONS = {"Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}
SERVICE_KEYS = {
    "image", "build", "command", "volumes", "ports", "environment", "secrets", "healthcheck", "restart",
    "deploy", "depends_on", "profiles", "user",
}  # fmt: skip


def documents(name: str) -> list[Any]:
    found: list[Any] = list(yaml.safe_load_all((FOLDER / name).read_text()))
    return found


def test_services_of_the_compose_file_refer_to_what_is_there() -> None:
    (found,) = documents("compose.yaml")
    services, extensions = found["services"], {key for key in found if key.startswith("x-")}
    assert found.keys() - extensions == {"name", "services", "secrets", "volumes"}
    assert services["coordinator"]["deploy"]["replicas"] == 3
    for name, service in services.items():
        assert service.keys() <= SERVICE_KEYS and "image" in service, name
        assert service.get("depends_on", {}).keys() <= services.keys(), name
        assert set(service.get("secrets", [])) <= found["secrets"].keys(), name
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            assert source.startswith("./fleet") or source in found["volumes"], volume
            assert target.startswith("/"), volume
    build = services["coordinator"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"


def test_what_is_appended_to_cloud_toml_names_the_services_and_files(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    assert main(["init", str(fleet), "--fleet", "home", "--url", "mqtt://192.168.1.10:1883"]) == 0
    with (fleet / "cloud.toml").open("a") as config:
        config.write((FOLDER / "store.toml").read_text())
    cloud = load_cloud(fleet / "cloud.toml")
    (compose,) = documents("compose.yaml")
    rows, blobs = urlsplit(cloud.store.url or ""), urlsplit(cloud.blobs.endpoint or "")
    assert {rows.hostname, blobs.hostname} <= compose["services"].keys()
    assert rows.username == compose["services"]["rows"]["environment"]["POSTGRES_USER"]
    secret = fleet / Path(compose["secrets"]["database-password"]["file"]).name
    assert cloud.store.password_file == str(secret)
    (identity,) = json.loads((FOLDER / "s3.json").read_text())["identities"]
    assert identity["credentials"][0]["accessKey"] == cloud.blobs.key_id
    assert "./fleet/s3.json:" in str(compose["services"]["objects"]["volumes"])


def test_kubernetes_objects_have_what_their_kinds_need() -> None:
    found = documents("kubernetes.yaml")
    assert {one["kind"]: one["apiVersion"] for one in found} == API_VERSIONS
    deployment, budget = (one["spec"] for one in found)
    pod, labels = deployment["template"]["spec"], deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"], budget["selector"],
                     *(each["labelSelector"] for each in pod["topologySpreadConstraints"])):  # fmt: skip
        assert selector["matchLabels"].items() <= labels.items()
    (container,) = pod["containers"]
    assert container["image"] and container["args"] == ["serve"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert "-c" in (FOLDER / "Dockerfile").read_text() and mounts["fleet"] == "/etc/sedge"
    # A stop hands shards over first; Kubernetes must wait for it, and leave the majority alone.
    assert pod["terminationGracePeriodSeconds"] >= 15
    assert 0 < budget["minAvailable"] < deployment["replicas"]

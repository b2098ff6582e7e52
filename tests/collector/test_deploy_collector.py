"""The unit and the manifest under deploy/: valid, least privileged, and with settings that load."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from foreshock.config import load

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "foreshock-collect.service"
MANIFEST = ROOT / "deploy" / "kubernetes" / "collector.yaml"
Node = dict[str, Any]  # YAML holds anything


class _Unit(configparser.ConfigParser):
    """As systemd reads it: case matters."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def parsed(path: Path) -> configparser.ConfigParser:
    unit = _Unit(strict=False, interpolation=None)
    unit.read_string(path.read_text())
    return unit


def manifest() -> dict[str, Node]:
    return {str(part["kind"]): part for part in yaml.safe_load_all(MANIFEST.read_text())}


def test_systemd_takes_the_unit_and_its_drop_ins(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES"):
            pytest.fail("systemd-analyze is not installed")
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text()
    # The command, the user and the page of the target machine are not on this one.
    text = text.replace("/opt/foreshock/bin/foreshock", sys.executable)
    text = text.replace("User=foreshock", "User=root").replace("Group=foreshock", "Group=root")
    for name in [None, *sorted(UNIT.with_suffix(".service.d").glob("*.example"))]:
        whole = text if name is None else f"{text}\n{name.read_text()}"
        path = tmp_path / UNIT.name
        path.write_text(whole)
        found = subprocess.run(
            [tool, "verify", "--man=no", str(path)], capture_output=True, timeout=60, check=False
        )
        said = [
            line
            for line in (found.stdout + found.stderr).decode().splitlines()
            if UNIT.name in line and "doc" not in line.lower()
        ]
        assert said == []


def test_the_unit_has_one_right_and_hides_neither_gpus_nor_processes() -> None:
    service = parsed(UNIT)["Service"]
    assert service["User"] == "foreshock"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == "CAP_SYSLOG"
    assert service["AmbientCapabilities"] == "CAP_SYSLOG"
    assert service["ProtectSystem"] == "strict"
    assert service["ExecStart"].endswith("foreshock collect")
    assert "HUP" in service["ExecReload"]
    assert service["Restart"] == "always"
    assert parsed(UNIT)["Unit"]["StartLimitIntervalSec"] == "0"
    blinding = {"PrivateDevices", "DevicePolicy", "ProtectClock", "ProtectKernelLogs"}
    assert not blinding & set(service)
    assert service.get("ProtectProc", "default") == "default"


def test_the_drop_ins_add_or_take_exactly_what_they_say() -> None:
    folder = UNIT.with_suffix(".service.d")
    jobs = parsed(folder / "jobs.conf.example")["Service"]
    assert jobs["CapabilityBoundingSet"] == jobs["AmbientCapabilities"] == "CAP_SYS_PTRACE"
    bare = parsed(folder / "no-kernel-log.conf.example")["Service"]
    assert bare["CapabilityBoundingSet"] == bare["AmbientCapabilities"] == ""
    assert bare["ProtectKernelLogs"] == "yes"


def test_the_pod_is_unprivileged_and_takes_no_gpu() -> None:
    pod = manifest()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context.get("privileged", False) is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod.get("hostNetwork", False) is False
    assert pod["hostPID"] is True
    assert pod["runtimeClassName"] == "nvidia"
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert container["resources"]["limits"]["memory"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    for path, mount in mounts.items():
        if mount["name"] in host and path != "/var/lib/foreshock":
            assert mount["readOnly"] is True, path


def test_the_parts_of_the_manifest_belong_together() -> None:
    parts = manifest()
    daemon = parts["DaemonSet"]["spec"]
    labels = daemon["template"]["metadata"]["labels"]
    assert daemon["selector"]["matchLabels"] == labels
    pod = daemon["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert parts["ConfigMap"]["metadata"]["name"] in str(pod["volumes"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["port"] in ports


def test_the_settings_of_the_manifest_load_and_agree_with_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = manifest()
    path = tmp_path / "foreshock.toml"
    path.write_text(parts["ConfigMap"]["data"]["foreshock.toml"])
    path.chmod(0o600)
    (container,) = parts["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        name = variable["name"]
        if name.startswith("FORESHOCK_") and name != "FORESHOCK_CONFIG":
            monkeypatch.setenv(name, "given")
    settings = load(path).settings
    collector = settings.collector
    assert collector.node == "given"
    assert collector.api_key is not None
    (port,) = container["ports"]
    assert (collector.host, collector.port) == ("0.0.0.0", port["containerPort"])
    assert settings.bus.transport == "kafka"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    root = collector.jobs.root
    assert {str(root / "proc"), str(root / "var/log"), str(collector.jobs.socket.parent)} <= mounts
    assert str(collector.kernel.path).startswith(f"{root}/var/log/")
    assert str(settings.data_dir) in mounts

"""What doctor says of the kernel log and the kubelet of a node."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.config import Loaded, load
from foreshock.doctor import Grade, checks_for
from foreshock.nodechecks import check_kernel_log, check_kubelet
from foreshock.roles import Role

LoadedWith = Callable[..., Loaded]


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedWith:
    """Settings of a node with GPUs, with changes."""

    def make(**variables: str) -> Loaded:
        environ = {
            "FORESHOCK_DATA_DIR": str(tmp_path / "data"),
            "FORESHOCK_COLLECTOR__KERNEL__PATH": str(tmp_path / "kern.log"),
            "FORESHOCK_COLLECTOR__JOBS__ROOT": str(tmp_path),
        }
        changes = {f"FORESHOCK_COLLECTOR__{name}": value for name, value in variables.items()}
        return load(environ=environ | changes, cwd=tmp_path)

    return make


def test_both_matter_to_a_collector_alone() -> None:
    assert {check_kernel_log, check_kubelet} <= set(checks_for([Role.COLLECT]))
    assert not {check_kernel_log, check_kubelet} & set(checks_for([Role.DETECT, Role.SERVE]))


def test_a_log_that_can_be_read_is_well_and_leaves_no_trace(
    loaded: LoadedWith, tmp_path: Path
) -> None:
    (tmp_path / "kern.log").write_text("Dec  1 00:00:00 n kernel: NVRM: Xid (PCI:0000:01:00): 79\n")
    found = check_kernel_log(loaded())
    assert (found.grade, found.advice) == (Grade.OK, "")
    assert str(tmp_path / "kern.log") in found.found
    assert not (tmp_path / "data").exists(), "the collector shall begin where it would have"


def test_a_missing_log_says_what_is_lost_and_which_setting_to_change(loaded: LoadedWith) -> None:
    found = check_kernel_log(loaded())
    assert found.grade == Grade.WARN
    assert "not there" in found.found
    assert "fallen off the bus" in found.found
    assert "collector.kernel.path" in found.advice


def test_a_refused_log_names_the_capability(loaded: LoadedWith, tmp_path: Path) -> None:
    settings = loaded()
    (tmp_path / "kern.log").touch(mode=0o000)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)  # root may read every file
    try:
        found = check_kernel_log(settings)
    finally:
        if root:
            os.seteuid(0)
    assert found.grade == Grade.WARN
    assert "may not be read" in found.found
    assert "CAP_SYSLOG" in found.advice


def test_a_log_that_is_a_folder_is_a_warning(loaded: LoadedWith, tmp_path: Path) -> None:
    (tmp_path / "kern.log").mkdir()
    assert check_kernel_log(loaded()).grade == Grade.WARN


@pytest.mark.parametrize(
    "changes", [{"KERNEL__USE": "off"}, {"SOURCE": "simulated"}, {"SOURCE": "replay"}]
)
def test_a_log_that_is_not_wanted_is_not_looked_for(
    loaded: LoadedWith, changes: dict[str, str]
) -> None:
    found = check_kernel_log(loaded(**changes))
    assert found.grade == Grade.OK
    assert "none is read" in found.found


def test_a_node_without_a_kubelet_is_well(loaded: LoadedWith) -> None:
    found = check_kubelet(loaded())
    assert (found.grade, found.advice) == (Grade.OK, "")
    assert "none here" in found.found
    assert "false" in check_kubelet(loaded(JOBS__POD_RESOURCES="false")).found
    assert "simulated" in check_kubelet(loaded(SOURCE="simulated")).found


def test_a_kubelet_that_breaks_off_is_a_warning_with_advice(
    loaded: LoadedWith, tmp_path: Path
) -> None:
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        found = check_kubelet(loaded(JOBS__POD_RESOURCES_SOCKET=str(path)))
        thread.join(60)
    assert found.grade == Grade.WARN
    assert "closed before" in found.found
    assert "collector.jobs.pod_resources" in found.advice

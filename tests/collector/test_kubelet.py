"""Which pod was given which GPU: a real gRPC server on a Unix socket answers as a kubelet does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.jobs.attribution import Attribution
from collector.jobs.grpccall import CallFailedError, UnaryCall
from collector.jobs.kubelet import BELIEVED_REFRESHES, Kubelet
from collector.jobs.podresources import (
    LIST_METHOD,
    Holding,
    MalformedAnswerError,
    holdings_of,
)
from collector.jobs.settings import JobSettings
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.sample import JobRef
from schemas.topics import SAMPLES

NOW = 1_790_000_000_000
PATIENCE = 60.0
GPUS = ("GPU-a", "GPU-b", "MIG-a1", "MIG-GPU-b/7/0")
UID = "11111111-2222-3333-4444-555555555555"
HEX = "0123456789abcdef" * 4
KUBE = f"0::/kubepods/pod{UID}/{HEX}\n"
DOCKER = f"0::/system.slice/docker-{HEX}.scope\n"
SLURM = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"

_TEXT, _MESSAGE, _INT = 9, 11, 3
_MANY, _ONE = 3, 1
# The messages of the API as the Kubernetes documentation prints them, also what is not read.
_PROTO: dict[str, list[tuple[str, int, int, int, str]]] = {
    "ListPodResourcesResponse": [("pod_resources", 1, _MANY, _MESSAGE, "PodResources")],
    "PodResources": [
        ("name", 1, _ONE, _TEXT, ""),
        ("namespace", 2, _ONE, _TEXT, ""),
        ("containers", 3, _MANY, _MESSAGE, "ContainerResources"),
    ],
    "ContainerResources": [
        ("name", 1, _ONE, _TEXT, ""),
        ("devices", 2, _MANY, _MESSAGE, "ContainerDevices"),
        ("cpu_ids", 3, _MANY, _INT, ""),
    ],
    "ContainerDevices": [
        ("resource_name", 1, _ONE, _TEXT, ""),
        ("device_ids", 2, _MANY, _TEXT, ""),
        ("topology", 3, _ONE, _MESSAGE, "TopologyInfo"),
    ],
    "TopologyInfo": [("nodes", 1, _MANY, _MESSAGE, "NUMANode")],
    "NUMANode": [("ID", 1, _ONE, _INT, "")],
}


# Any: protobuf makes the classes at run time.
def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for name, fields in _PROTO.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, of in fields:
            made = message.field.add(name=field, number=number, label=label, type=kind)
            if of:
                made.type_name = f".v1.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))
        for name in _PROTO
    }


MESSAGES = _messages()
Pod = tuple[str, str, str, Sequence[str]]


def answer(*pods: Pod) -> bytes:
    """Encode (namespace, pod, container, device ids), with all that a kubelet says besides."""
    said = MESSAGES["ListPodResourcesResponse"]()
    for namespace, name, container, devices in pods:
        pod = said.pod_resources.add(name=name, namespace=namespace)
        inside = pod.containers.add(name=container, cpu_ids=[1, 2, 300])
        given = inside.devices.add(resource_name="nvidia.com/gpu", device_ids=devices)
        given.topology.nodes.add(ID=1)
        inside.devices.add(resource_name="rdma/hca", device_ids=["mlx5_0"])
    return bytes(said.SerializeToString())


class FakeKubelet:
    """A gRPC server with one method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.says = answer()
        self.refuses: grpc.StatusCode | None = None
        self.asked = 0
        self.let_go = threading.Event()
        self.let_go.set()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
        self._server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(service,))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        self.let_go.set()
        if self._server is not None:
            assert self._server.stop(0).wait(PATIENCE)

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked += 1
        assert request == b""
        assert self.let_go.wait(PATIENCE)
        if self.refuses is not None:
            context.abort(self.refuses, "no")
        return self.says


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    server = FakeKubelet(tmp_path / "kubelet.sock")
    server.start()
    yield server
    server.stop()


def ask(path: Path) -> tuple[Holding, ...]:
    call = UnaryCall(path, LIST_METHOD)
    try:
        said = call.wait(PATIENCE)
        assert said is not None
        return holdings_of(said)
    finally:
        call.close()


def test_a_real_server_is_understood_whole_mig_and_shared_gpus_alike(
    kubelet: FakeKubelet,
) -> None:
    kubelet.says = answer(
        ("ml", "trainer-0", "main", ["GPU-a", "GPU-b"]),
        ("web", "llm-7", "server", ["MIG-a1", "MIG-GPU-b/7/0"]),
        ("dev", "note-1", "lab", ["GPU-a::0", "GPU-a::3"]),
        ("kube-system", "dns", "dns", []),
    )
    found = {(item.device, item.job, item.container) for item in ask(kubelet.path)}
    assert found == {
        ("GPU-a", "ml/trainer-0", "main"),
        ("GPU-b", "ml/trainer-0", "main"),
        ("MIG-a1", "web/llm-7", "server"),
        ("MIG-GPU-b/7/0", "web/llm-7", "server"),
        ("GPU-a", "dev/note-1", "lab"),
        *(
            ("mlx5_0", job, container)
            for job, container in (
                ("ml/trainer-0", "main"),
                ("web/llm-7", "server"),
                ("dev/note-1", "lab"),
                ("kube-system/dns", "dns"),
            )
        ),
    }


def test_no_pod_is_an_answer_and_a_large_one_comes_whole(kubelet: FakeKubelet) -> None:
    assert ask(kubelet.path) == ()
    # Far beyond a frame (16 KiB) and the window that HTTP/2 begins with (64 KiB).
    kubelet.says = answer(*(("n", f"pod-{n}", "c" * 200, [f"GPU-{n}"]) for n in range(2000)))
    assert len(kubelet.says) > 500_000
    found = ask(kubelet.path)
    assert {item.job for item in found} == {f"n/pod-{n}" for n in range(2000)}


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_call_that_the_server_refuses_fails_with_words(kubelet: FakeKubelet, code: str) -> None:
    kubelet.refuses = grpc.StatusCode[code]
    with pytest.raises(CallFailedError, match="refused"):
        ask(kubelet.path)
    call = UnaryCall(kubelet.path, "/v1.PodResourcesLister/Nonsense")
    with pytest.raises(CallFailedError, match="refused"):
        call.wait(PATIENCE)
    call.close()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


@contextlib.contextmanager
def saying(path: Path, said: bytes) -> Iterator[None]:
    """Accept one connection, say this, and close."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass  # until the other side has closed, or what was said might be lost

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "closed before"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no HTTP/2"),
        (frame(0, 1, 1, b"\0\0\0\0\x09abc"), "cut"),
        (frame(0, 1, 1, b"\1\0\0\0\3abc"), "no gRPC"),
        (frame(0, 1, 1, b"\0\0"), "no gRPC"),
        (frame(3, 0, 1, b"\0\0\0\x08"), "code 8"),
        (frame(7, 0, 0, bytes(8)), "going away"),
        (frame(0, 0, 1, b"\0\0\0\0\3abc")[:-2], "closed before"),
        (frame(0, 0, 1, b"\0\0\0\0\3abc"), "closed before"),
    ],
)
def test_damage_on_the_wire_is_a_failed_call(tmp_path: Path, said: bytes, words: str) -> None:
    path = tmp_path / "s"
    with saying(path, said):
        call = UnaryCall(path, LIST_METHOD)
        try:
            with pytest.raises(CallFailedError, match=words):
                call.wait(PATIENCE)
        finally:
            call.close()


def test_padding_pings_and_strange_frames_between_are_no_part_of_the_answer(
    tmp_path: Path,
) -> None:
    message = answer(("n", "p", "c", ["GPU-a"]))
    body = struct.pack(">BI", 0, len(message)) + message
    said = b"".join(
        (
            frame(4, 0, 0),
            frame(6, 0, 0, bytes(8)),
            frame(0xEE, 0, 0, b"of the future"),
            frame(1, 4, 1, b"\x88"),
            frame(0, 0x8, 1, b"\3" + body[:4] + bytes(3)),
            frame(0, 0x8, 1, b"\0" + body[4:9]),
            frame(0, 0, 1, body[9:]),
            frame(1, 0x5, 1, b"\x88"),
        )
    )
    path = tmp_path / "s"
    with saying(path, said):
        assert Holding("GPU-a", "n", "p", "c") in ask(path)


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_cut_message_is_refused_and_never_misread(cut: int) -> None:
    whole = answer(("namespace", "pod", "container", ["GPU-a", "GPU-b"]))
    said = whole[:-cut]
    with pytest.raises(MalformedAnswerError):
        holdings_of(said)


@pytest.mark.parametrize("said", [b"\x0b", b"\x0a\x04\x0a\x02\xff\xfe", b"\xff" * 11, b"\x08"])
def test_what_is_no_such_message_is_refused(said: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        holdings_of(said)


def test_a_node_without_a_kubelet_is_a_fact(tmp_path: Path) -> None:
    asked = Kubelet(tmp_path / "none.sock", 30.0)
    asked.begin(NOW, 1.0)
    assert asked.holdings(NOW) is None
    assert asked.health()["state"] == "absent"
    assert "none.sock" in str(asked.health()["detail"])


def test_a_kubelet_that_hangs_keeps_nobody_waiting_and_is_asked_again(
    kubelet: FakeKubelet,
) -> None:
    kubelet.says = answer(("n", "p", "c", ["GPU-a"]))
    kubelet.let_go.clear()
    asked = Kubelet(kubelet.path, 30.0)
    assert asked.holdings(NOW) is None
    assert asked.holdings(NOW + 9_000) is None
    assert asked.health()["state"] == "asked"
    assert asked.holdings(NOW + 10_000) is None
    assert asked.health()["state"] == "failing"
    kubelet.let_go.set()
    asked.begin(NOW + 30_000, PATIENCE)
    assert asked.holdings(NOW + 30_000)
    assert asked.health()["state"] == "ok"
    asked.close()


def test_what_was_said_outlives_a_restart_but_not_the_end_of_the_kubelet(
    kubelet: FakeKubelet,
) -> None:
    kubelet.says = answer(("n", "p", "c", ["GPU-a"]))
    asked = Kubelet(kubelet.path, 30.0)
    asked.begin(NOW, PATIENCE)
    kubelet.stop()
    for refresh in range(1, BELIEVED_REFRESHES + 1):
        assert asked.holdings(NOW + 30_000 * refresh), refresh
        assert asked.health()["state"] in {"absent", "failing"}
    assert asked.holdings(NOW + 30_000 * (BELIEVED_REFRESHES + 1)) is None
    asked.close()


def test_it_is_asked_once_per_refresh(kubelet: FakeKubelet) -> None:
    asked = Kubelet(kubelet.path, 30.0)
    asked.begin(NOW, PATIENCE)
    for second in range(30):
        asked.holdings(NOW + 1000 * second)
    assert kubelet.asked == 1
    asked.begin(NOW + 30_000, PATIENCE)
    assert kubelet.asked == 2


class Node:
    """A fake root with processes, and a kubelet that speaks."""

    def __init__(self, root: Path, kubelet: FakeKubelet) -> None:
        self.root = root
        self.kubelet = kubelet

    def process(self, pid: int, cgroup: str, environment: str = "") -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True)
        rest = " ".join(["S", *["0"] * 18, "500", "0"])
        (folder / "stat").write_text(f"{pid} (x) {rest}\n")
        (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_text(environment)

    def jobs(
        self, pids: dict[str, tuple[int, ...]] | None, *pods: Pod, **settings: object
    ) -> list[JobRef]:
        self.kubelet.says = answer(*pods)
        chosen = JobSettings.model_validate(
            {"root": self.root, "pod_resources_socket": self.kubelet.path, **settings}
        )
        source = Attribution(chosen)
        source.begin(NOW, PATIENCE)
        found = source.jobs(NOW, GPUS, pids)
        source.close()
        return list(found or ())


@pytest.fixture
def node(tmp_path: Path, kubelet: FakeKubelet) -> Node:
    return Node(tmp_path / "root", kubelet)


def test_a_pod_without_a_process_on_its_gpus_is_seen(node: Node) -> None:
    pod = ("ml", "trainer-0", "main", ["GPU-a", "MIG-GPU-b/7/0", "GPU-elsewhere"])
    wanted = JobRef(
        gpus=("GPU-a", "MIG-GPU-b/7/0"), job="ml/trainer-0", project="ml", container="main"
    )
    assert node.jobs({}, pod) == [wanted]
    assert node.jobs(None, pod) == [wanted], "also where no process is listed"
    assert node.jobs(None, pod, pod_resources=False) == []


def test_processes_and_kubelet_make_one_entry_of_one_pod(node: Node) -> None:
    (node.root / "var/log/pods" / f"ml_trainer-0_{UID}").mkdir(parents=True)
    node.process(10, KUBE)
    found = node.jobs({"GPU-a": (10,)}, ("ml", "trainer-0", "main", ["GPU-a", "GPU-b"]))
    assert [(ref.job, ref.gpus, ref.container, ref.pids) for ref in found] == [
        ("ml/trainer-0", ("GPU-a",), "main", (10,)),
        ("ml/trainer-0", ("GPU-b",), "main", ()),
    ] or [(ref.job, ref.gpus, ref.container, ref.pids) for ref in found] == [
        ("ml/trainer-0", ("GPU-a", "GPU-b"), "main", (10,)),
    ]


@pytest.mark.parametrize("cgroup", [KUBE, DOCKER])
def test_the_kubelet_names_what_is_known_by_an_id_alone(node: Node, cgroup: str) -> None:
    node.process(10, cgroup)
    (ref,) = node.jobs({"GPU-a": (10,)}, ("ml", "trainer-0", "main", ["GPU-a"]))
    assert (ref.job, ref.project, ref.container) == ("ml/trainer-0", "ml", "main")
    assert ref.pids == (10,)


def test_of_two_pods_on_a_shared_gpu_none_is_guessed(node: Node) -> None:
    node.process(10, KUBE)
    pods = (("ml", "one", "c", ["GPU-a::0"]), ("ml", "two", "c", ["GPU-a::1"]))
    found = node.jobs({"GPU-a": (10,)}, *pods)
    assert {ref.job: ref.pids for ref in found} == {
        f"pod/{UID}": (10,),
        "ml/one": (),
        "ml/two": (),
    }


def test_the_sites_own_words_win_over_the_pod(node: Node) -> None:
    node.process(10, KUBE, "MY_RUN=run-7\0")
    node.process(11, SLURM)
    pods = (("ml", "one", "c", ["GPU-a"]), ("ml", "two", "c", ["GPU-b"]))
    found = node.jobs({"GPU-a": (10,), "GPU-b": (11,)}, *pods, variable="MY_RUN", job="rest")
    assert {ref.job: ref.gpus for ref in found} == {
        "run-7": ("GPU-a",),
        "slurm/42": ("GPU-b",),
        "rest": ("MIG-a1", "MIG-GPU-b/7/0"),
    }


class TwoGpus:
    """A source that lists two GPUs and no process."""

    kind = "simulated"
    exhausted = False

    def read(self, ts_ms: int) -> list[Reading]:
        return [Reading(node="n1", ts=ts_ms, gpus=GPUS[:2], values={"power_watts": [1.0, 2.0]})]

    def close(self) -> None:
        """Nothing to let go of."""


def test_the_agent_publishes_the_pods_and_says_whether_the_kubelet_answers(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    kubelet.says = answer(("ml", "trainer-0", "main", ["GPU-b"]))
    source = Attribution(
        JobSettings.model_validate({"root": tmp_path, "pod_resources_socket": kubelet.path})
    )
    source.begin(NOW, PATIENCE)
    bus = MemoryBus()
    chosen = CollectorSettings.model_validate({"source": "simulated", "node": "n1"})
    service = CollectorService(
        TwoGpus(), bus, chosen, clock=ManualClock(start_ms=NOW, stop_at=2.5), jobs=source
    )
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=[SAMPLES.full_name()])
    first = decode_sample(reader.poll(100, 0.0)[0].value)
    reader.close()
    assert first.jobs == (
        JobRef(gpus=("GPU-b",), job="ml/trainer-0", project="ml", container="main"),
    )
    told = service.health()["kubelet"]
    assert isinstance(told, dict)
    assert told["state"] == "ok"

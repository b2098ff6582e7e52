"""What the Kafka client can report, by name and in words."""

from __future__ import annotations

import confluent_kafka as ck  # noqa: TID251 - this is the one door

from bus.settings import KafkaSettings
from schemas.errors import ConfigError

__all__ = [
    "ALL_BROKERS_DOWN",
    "AUTO_OFFSET_RESET",
    "HOPELESS",
    "NO_OFFSET",
    "PARTITION_EOF",
    "bad_property",
    "explain",
]


def _local(name: str) -> int:
    """Code of a fault that the client itself finds; it gives those names a leading underscore."""
    return int(getattr(ck.KafkaError, f"_{name}"))


ALL_BROKERS_DOWN = _local("ALL_BROKERS_DOWN")
AUTO_OFFSET_RESET = _local("AUTO_OFFSET_RESET")
NO_OFFSET = _local("NO_OFFSET")
PARTITION_EOF = _local("PARTITION_EOF")

_REFUSED = frozenset({_local("AUTHENTICATION"), ck.KafkaError.SASL_AUTHENTICATION_FAILED})
_FORBIDDEN = frozenset(
    {
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
        ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

#: What retrying never mends.
HOPELESS = _REFUSED | _FORBIDDEN | {ck.KafkaError.UNSUPPORTED_VERSION}

_WORDS: tuple[tuple[frozenset[int], str, str], ...] = (
    (_REFUSED, "refused the log-in", "Check the sasl.* properties"),
    (
        frozenset({_local("SSL")}),
        "has no trusted TLS connection",
        "Check the ssl.* properties",
    ),
    (_FORBIDDEN, "does not allow this", "Ask for the rights on topic and group"),
    (
        frozenset(
            {
                ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
                _local("UNKNOWN_TOPIC"),
                _local("UNKNOWN_PARTITION"),
            }
        ),
        "lacks the topic",
        "Run `foreshock topics create`",
    ),
    (
        frozenset({ALL_BROKERS_DOWN, _local("TRANSPORT"), _local("RESOLVE"), _local("TIMED_OUT")}),
        "does not answer",
        "Check that it runs, and the name and port",
    ),
    (
        frozenset({_local("MSG_TIMED_OUT")}),
        "did not confirm the message in time",
        "Check that it runs",
    ),
    (
        frozenset({_local("PURGE_QUEUE"), _local("PURGE_INFLIGHT")}),
        "did not take the message before foreshock ended",
        "Check that it runs",
    ),
)


def explain(settings: KafkaSettings, error: ck.KafkaError) -> str:
    """Say in one sentence what the client reported and what to do."""
    text = error.str().rstrip(".")
    for codes, happened, advice in _WORDS:
        if error.code() in codes:
            # The client counts "0/2 brokers are down" where none answers.
            why = "" if error.code() == ALL_BROKERS_DOWN else f": {text}"
            return f"Kafka at {settings.bootstrap} {happened}{why}. {advice}."
    return f"Kafka at {settings.bootstrap} reported: {text}."


def bad_property(error: Exception) -> ConfigError:
    """Say which property the client does not accept."""
    cause = error.args[0] if error.args else error
    text = cause.str() if isinstance(cause, ck.KafkaError) else str(cause)
    return ConfigError(f"bus.kafka.properties cannot be used: {text}.")

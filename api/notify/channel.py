"""From settings to a way of delivery."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from api.endpoints import EndpointSettings
from api.notify.adapters.alertmanager import AlertmanagerAdapter, AlertmanagerWebhookAdapter
from api.notify.adapters.apprise import AppriseChannel
from api.notify.adapters.dingtalk import DingTalkAdapter
from api.notify.adapters.discord import DiscordAdapter
from api.notify.adapters.feishu import FeishuAdapter
from api.notify.adapters.opsgenie import OpsgenieAdapter
from api.notify.adapters.pagerduty import PagerDutyAdapter
from api.notify.adapters.slack import SlackAdapter
from api.notify.adapters.teams import TeamsAdapter
from api.notify.adapters.telegram import TelegramAdapter
from api.notify.adapters.wecom import WeComAdapter
from api.notify.base import Adapter, Channel, Notice
from api.notify.mail import MailChannel
from api.notify.messages import Style
from api.notify.outbox import Terms
from api.notify.pacing import Rate
from api.notify.redaction import Redactor, without_sensitive
from api.notify.retry import Outcome, Verdict
from api.notify.sender import Sender, SendError
from api.notify.webhook import WebhookAdapter
from api.notify.worker import Target
from api.settings import DeliverySettings, secret_bytes
from schemas.errors import ConfigError

__all__ = ["HttpChannel", "adapter_of", "channel_of", "rate_of", "target_of", "terms_of"]

_DURABLE_SECONDS = 3 * 86_400

_TOO_LARGE = 413


@dataclass(slots=True, kw_only=True)
class HttpChannel:
    """A receiver that speaks HTTP.

    Parameters
    ----------
    adapter
        Its kind.
    sender
        What opens connections.
    allow_private
        Whether its address may be private.
    rate
        How much it takes; None for no limit.
    ca_file
        Authorities to trust instead of the system's.
    redactor
        Hides its secrets in what is kept of its answers.
    clock
        Unix seconds.
    """

    adapter: Adapter
    sender: Sender
    allow_private: bool = False
    rate: Rate | None = None
    ca_file: Path | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009 - frozen
    clock: Callable[[], float] = time.time

    @property
    def digests(self) -> bool:
        """Whether one message may tell many alerts."""
        return self.adapter.digests

    def deliver(self, notice: Notice) -> Outcome:
        """Make one attempt; what is too long is shortened and sent again at once."""
        notice = without_sensitive(notice)
        outcome = self._attempt(notice)
        if outcome.status == _TOO_LARGE and not notice.compact:
            outcome = self._attempt(replace(notice, compact=True))
        return self.redactor.outcome(outcome)

    def _attempt(self, notice: Notice) -> Outcome:
        request = self.adapter.request(notice, now_seconds=int(self.clock()))
        if self.ca_file is not None:
            request = replace(request, ca_file=self.ca_file)
        try:
            answer = self.sender.send(request, allow_private=self.allow_private)
        except SendError as exc:
            verdict = Verdict.PERMANENT if exc.permanent else Verdict.TRANSIENT
            return Outcome(verdict=verdict, error=str(exc), unsure=exc.unsure)
        return self.adapter.judge(answer, now_seconds=self.clock())


def channel_of(
    endpoint: EndpointSettings,
    sender: Sender,
    delivery: DeliverySettings,
    *,
    clock: Callable[[], float] = time.time,
) -> Channel:
    """Return the way to an endpoint.

    Raises
    ------
    ConfigError
        If a secret cannot be read.
    """
    style = _style(endpoint, delivery)
    if endpoint.mail is not None and endpoint.type == "email":
        return MailChannel(
            endpoint=endpoint.name,
            mail=endpoint.mail,
            password=endpoint.access_token(),
            style=style,
            connect_seconds=delivery.connect_seconds,
            total_seconds=delivery.total_seconds,
            allow_private=endpoint.allow_private,
            allowed=delivery.allowed(),
            ca_file=endpoint.ca_file,
            rate=rate_of(endpoint, Rate.within(60, burst=10)),
            clock=clock,
        )
    if endpoint.type == "apprise":
        return AppriseChannel(
            endpoint=endpoint.name,
            url=endpoint.address,
            style=style,
            connect_seconds=delivery.connect_seconds,
            total_seconds=delivery.total_seconds,
            rate=rate_of(endpoint, Rate.within(20, burst=5)),
        )
    adapter = adapter_of(endpoint, style)
    secrets = (endpoint.address, endpoint.signing_secret(), endpoint.access_token())
    return HttpChannel(
        adapter=adapter,
        sender=sender,
        allow_private=endpoint.allow_private,
        rate=rate_of(endpoint, adapter.rate),
        ca_file=endpoint.ca_file,
        redactor=Redactor.of(*secrets),
        clock=clock,
    )


def target_of(endpoint: EndpointSettings, sender: Sender, delivery: DeliverySettings) -> Target:
    """Return an endpoint as the worker needs it. Raises ConfigError as :func:`channel_of`."""
    return Target(
        channel=channel_of(endpoint, sender, delivery), schedule=_schedule(endpoint, delivery)
    )


def terms_of(target: Target, delivery: DeliverySettings) -> Terms:
    """Return how the outbox treats an endpoint."""
    # The schedule with its spread, and time for the attempts themselves.
    longest = sum(target.schedule or delivery.schedule_seconds) * 1.2 + 3600
    return Terms(
        rate=target.channel.rate,
        digests=target.channel.digests,
        deadline_ms=int(longest * 1000),
    )


def _schedule(endpoint: EndpointSettings, delivery: DeliverySettings) -> tuple[float, ...]:
    schedule = delivery.schedule_seconds
    if endpoint.profile == "durable":
        longest = max(schedule[-1], 60.0)
        while sum(schedule) < _DURABLE_SECONDS:
            schedule = (*schedule, longest)
    return schedule


def rate_of(endpoint: EndpointSettings, usual: Rate | None) -> Rate | None:
    """Return the rate of the settings, else that of its kind."""
    if endpoint.rate_per_minute is None:
        return usual
    return Rate.within(endpoint.rate_per_minute, burst=5)


def _style(endpoint: EndpointSettings, delivery: DeliverySettings) -> Style:
    link = None if delivery.public_url is None else delivery.public_url.rstrip("/")
    return Style(language=endpoint.language, timezone=endpoint.timezone, link=link)


def adapter_of(endpoint: EndpointSettings, style: Style) -> Adapter:
    """Return the adapter of an endpoint that speaks HTTP."""
    make = _ADAPTERS.get(endpoint.type)
    if make is None:
        raise ConfigError(f"endpoint {endpoint.name!r} has a type that does not speak HTTP")
    return make(endpoint, style)


def _webhook(endpoint: EndpointSettings, _style: Style) -> Adapter:
    keys = [secret_bytes(endpoint.signing_secret())]
    if endpoint.secret_previous is not None:
        keys.append(secret_bytes(endpoint.secret_previous.get_secret_value()))
    return WebhookAdapter(url=endpoint.address, keys=tuple(keys))


_Make = Callable[[EndpointSettings, Style], Adapter]
_ADAPTERS: dict[str, _Make] = {
    "webhook": _webhook,
    "slack": lambda e, s: SlackAdapter(
        url=e.address, style=s, token=e.access_token(), channel=e.channel or ""
    ),
    "teams": lambda e, s: TeamsAdapter(url=e.address, style=s),
    "discord": lambda e, s: DiscordAdapter(url=e.address, style=s),
    "telegram": lambda e, s: TelegramAdapter(
        url=e.address, token=e.access_token(), chat=e.channel or "", style=s
    ),
    "dingtalk": lambda e, s: DingTalkAdapter(
        url=e.address, style=s, secret=e.signing_secret(), keyword=e.keyword or ""
    ),
    "feishu": lambda e, s: FeishuAdapter(
        url=e.address, style=s, secret=e.signing_secret(), keyword=e.keyword or ""
    ),
    "wecom": lambda e, s: WeComAdapter(url=e.address, style=s),
    "pagerduty": lambda e, s: PagerDutyAdapter(
        url=e.address, routing_key=e.access_token(), style=s
    ),
    "opsgenie": lambda e, s: OpsgenieAdapter(url=e.address, api_key=e.access_token(), style=s),
    "alertmanager": lambda e, s: AlertmanagerAdapter(url=e.address, style=s),
    "alertmanager_webhook": lambda e, s: AlertmanagerWebhookAdapter(
        url=e.address, receiver=e.name, style=s
    ),
}

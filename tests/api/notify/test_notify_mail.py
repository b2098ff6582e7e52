"""E-mail through a real server with real certificates: TLS of each kind, and what it refuses."""

from __future__ import annotations

import email
import email.policy
import io
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP
from PIL import Image

from api.endpoints import MailSettings
from api.notify.base import Notice
from api.notify.mail import MailChannel, build_mail
from api.notify.messages import Style
from api.notify.retry import Outcome, Verdict
from schemas.alert import AlertEvent, Series
from schemas.codec import encode

NOW = 1_758_684_060.0


class _Inbox:
    """Keeps what it is given; refuses one address."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []

    async def handle_RCPT(  # noqa: N802 - the library's name
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address.startswith("nobody"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        found = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.append(found)
        return "250 taken"


class _Controller(Controller):
    """Starts on a port of the system's choice."""

    def __init__(self, inbox: _Inbox, *, implicit: Any = None, starttls: Any = None) -> None:
        self._starttls = starttls
        super().__init__(inbox, hostname="127.0.0.1", port=0, ssl_context=implicit)

    def factory(self) -> SMTP:
        return SMTP(
            self.handler, tls_context=self._starttls, require_starttls=self._starttls is not None
        )

    def _trigger_server(self) -> None:
        """Let the library see whether it listens where it really does."""
        self.port = self.bound
        super()._trigger_server()  # type: ignore[no-untyped-call]  # the library has no types

    @property
    def bound(self) -> int:
        server: Any = self.server
        found: int = server.sockets[0].getsockname()[1]
        return found


@contextmanager
def serving(inbox: _Inbox, **tls: Any) -> Iterator[int]:
    controller = _Controller(inbox, **tls)
    controller.start()
    try:
        yield controller.bound
    finally:
        controller.stop()


@pytest.fixture
def server_tls(tls_material: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls_material.configure_cert(context)
    return context


def channel(port: int, tls: str, ca: Path | None, **changes: Any) -> MailChannel:
    fields: dict[str, Any] = {
        "server": "localhost",
        "port": port,
        "tls": tls,
        "sender": "foreshock@example.org",
        "recipients": ("noc@example.org",),
    }
    return MailChannel(
        endpoint="mail",
        mail=MailSettings(**(fields | changes)),
        style=Style(),
        connect_seconds=5,
        total_seconds=10,
        clock=lambda: NOW,
        allow_private=True,
        ca_file=ca,
        resolver=lambda _host, _port: ["127.0.0.1"],
    )


def notice(event: AlertEvent, webhook_id: str = "w-1") -> Notice:
    return Notice(webhook_id=webhook_id, attempt=1, event=orjson.loads(encode(event)))


def send(where: MailChannel, event: AlertEvent) -> Outcome:
    return where.deliver(notice(event))


def test_mail_goes_over_implicit_tls_checked_by_an_authority_of_our_own(
    server_tls: ssl.SSLContext, ca_file: Path, make_event: Callable[..., AlertEvent]
) -> None:
    inbox = _Inbox()
    with serving(inbox, implicit=server_tls) as port:
        outcome = send(channel(port, "implicit", ca_file), make_event())
    assert (outcome.verdict, outcome.status) == (Verdict.DELIVERED, 250)
    (mail,) = inbox.mails
    assert mail["Subject"] == "[WARNING] node-1 GPU 1: hotter than its peers"


def test_mail_goes_over_starttls(
    server_tls: ssl.SSLContext, ca_file: Path, make_event: Callable[..., AlertEvent]
) -> None:
    inbox = _Inbox()
    with serving(inbox, starttls=server_tls) as port:
        outcome = send(channel(port, "starttls", ca_file), make_event())
    assert outcome.verdict is Verdict.DELIVERED, outcome
    assert len(inbox.mails) == 1


def test_a_server_without_starttls_is_refused(
    ca_file: Path, make_event: Callable[..., AlertEvent]
) -> None:
    inbox = _Inbox()
    with serving(inbox) as port:
        outcome = send(channel(port, "starttls", ca_file), make_event())
    assert outcome.verdict is Verdict.PERMANENT
    assert "does not offer STARTTLS" in (outcome.error or "")
    assert inbox.mails == []


@pytest.mark.parametrize("tls", ["implicit", "starttls"])
def test_a_certificate_of_another_name_is_refused(
    tls: str, authority: Any, ca_file: Path, make_event: Callable[..., AlertEvent]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("mail.example.org").configure_cert(context)
    inbox = _Inbox()
    with serving(inbox, **{tls: context}) as port:
        outcome = send(channel(port, tls, ca_file), make_event())
    assert outcome.verdict is Verdict.PERMANENT
    assert "not trusted" in (outcome.error or "")
    assert inbox.mails == []


def test_a_certificate_of_an_unknown_authority_is_refused(
    server_tls: ssl.SSLContext, make_event: Callable[..., AlertEvent]
) -> None:
    inbox = _Inbox()
    with serving(inbox, implicit=server_tls) as port:
        outcome = send(channel(port, "implicit", None), make_event())
    assert "not trusted" in (outcome.error or "")
    assert inbox.mails == []


def test_a_recipient_that_does_not_exist_is_for_good_and_its_address_is_not_repeated(
    make_event: Callable[..., AlertEvent],
) -> None:
    with serving(_Inbox()) as port:
        outcome = send(
            channel(port, "none", None, recipients=("nobody@example.org",)), make_event()
        )
    assert outcome.verdict is Verdict.PERMANENT
    assert "550" in (outcome.error or "")
    assert "nobody" not in (outcome.error or "")
    assert not outcome.line_failed


def test_mails_of_one_alert_form_a_thread_and_carry_the_evidence_as_a_picture(
    make_event: Callable[..., AlertEvent],
) -> None:
    mail = channel(1, "none", None).mail
    values: list[float | None] = [70.0, None, 72.0, 87.0]
    series = (Series(metric="temperature_celsius", ts=[1000, 2000, 3000, 4000], values=values),)
    first = build_mail(
        notice(make_event(series=series)), Style(), mail, endpoint="mail", now_seconds=NOW
    )
    last = build_mail(
        notice(make_event(seq=2, state="resolved"), "w-2"),
        Style(),
        mail,
        endpoint="mail",
        now_seconds=NOW,
    )
    assert first["References"] == last["References"]
    assert first["Message-ID"] != last["Message-ID"]
    body = first.get_body(("html",))
    text = first.get_body(("plain",))
    assert body is not None
    assert text is not None
    page = body.get_content()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "87 °C" in text.get_content()
    (picture,) = [p for p in first.walk() if p.get_content_type() == "image/png"]
    assert f"cid:{picture['Content-ID'][1:-1]}" in page
    image = Image.open(io.BytesIO(picture.get_payload(decode=True)))  # type: ignore[arg-type]
    assert image.size == (560, 180)


def test_no_header_can_be_smuggled_in_through_a_name(
    make_event: Callable[..., AlertEvent],
) -> None:
    event = make_event(node="n\r\nBcc: evil@example.org")
    mail = channel(1, "none", None).mail
    found = build_mail(notice(event), Style(), mail, endpoint="mail", now_seconds=NOW)
    assert found["Bcc"] is None
    assert "\nBcc:" not in found.as_bytes().decode(errors="replace").split("\n\n")[0]


def test_a_password_is_never_sent_without_tls() -> None:
    with pytest.raises(ValueError, match="without TLS"):
        MailSettings(
            server="mail",
            sender="a@b.example",
            recipients=("c@d.example",),
            tls="none",
            username="foreshock",
        )

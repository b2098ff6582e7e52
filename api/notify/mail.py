"""E-mail: text and HTML with the evidence as an inline picture, threaded per alert.

The connection goes to an address that was judged, the certificate is checked against the name, and
a server that should offer STARTTLS and does not is refused. Success is the 250 after the data.
"""

from __future__ import annotations

import html
import smtplib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from pathlib import Path

from api.endpoints import MailSettings
from api.notify.adapters.common import message_of
from api.notify.base import Notice
from api.notify.chart import evidence_png
from api.notify.egress import Allowed, RefusedAddressError, check_addresses, check_port, resolve
from api.notify.messages import Message, Style, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome, Verdict
from api.notify.sender import tls_context
from api.notify.wire import Deadline

__all__ = ["MailChannel", "build_mail"]

_DOMAIN = "foreshock.invalid"


def build_mail(
    notice: Notice, style: Style, mail: MailSettings, *, endpoint: str, now_seconds: float
) -> EmailMessage:
    """Build the mail of one notice.

    Mails of one alert answer the same first message, so that readers show them as one thread; the
    Message-ID is that of the notice, so that one sent twice can be told.
    """
    message = message_of(notice, style)
    found = EmailMessage()
    found["Subject"] = message.title
    found["From"] = mail.sender
    found["To"] = ", ".join(mail.recipients)
    found["Date"] = format_datetime(datetime.fromtimestamp(now_seconds, UTC))
    domain = mail.sender.rpartition("@")[2]
    found["Message-ID"] = f"<{notice.webhook_id}.{endpoint}@{domain}>"
    if not notice.digest:
        root = f"<{notice.event['alert_id']}.{endpoint}@{domain}>"
        found["In-Reply-To"] = root
        found["References"] = root
    found["Auto-Submitted"] = "auto-generated"
    found["X-Auto-Response-Suppress"] = "All"
    found["X-Foreshock-Id"] = notice.webhook_id
    if message.severity == "critical":
        found["X-Priority"] = "1"
    found.set_content(plain_text(message))
    png = None if notice.digest or notice.compact else evidence_png(notice.event)
    picture = make_msgid(domain=_DOMAIN) if png else None
    found.add_alternative(_html(message, picture), subtype="html")
    if png and picture:
        part = found.get_payload()[1]  # type: ignore[index]  # the HTML alternative just added
        part.add_related(  # type: ignore[union-attr]  # an EmailMessage
            png, "image", "png", cid=picture, disposition="inline", filename="evidence.png"
        )
    return found


_COLOURS = {"critical": "#b3261e", "warning": "#8a5a00", "resolved": "#1b6e2d"}


def _html(message: Message, picture: str | None) -> str:
    esc = html.escape
    colour = _COLOURS.get(message.severity, "#1a5cc8")
    rows = "".join(
        f'<tr><td style="padding:2px 12px 2px 0;color:#5f6368">{esc(name)}</td>'
        f"<td>{esc(value)}</td></tr>"
        for name, value in message.facts
    )
    parts = [
        '<!doctype html><html><head><meta charset="utf-8"></head>'
        '<body style="font-family:sans-serif;color:#202124">',
        f'<h2 style="font-size:18px;margin:0 0 8px;color:{colour}">{esc(message.title)}</h2>',
        f"<p>{esc(message.summary)}</p>" if message.summary else "",
        f"<table>{rows}</table>" if rows else "",
        _listed(message.words["evidence"], message.evidence, "ul"),
        f'<p><img src="cid:{picture[1:-1]}" alt="{esc(message.words["evidence"])}" width="560" '
        'height="180"></p>'
        if picture
        else "",
        f"<p><b>{esc(message.words['cause'])}:</b> {esc(message.cause)}</p>"
        if message.cause
        else "",
        _listed(message.words["next"], message.steps, "ol"),
        "".join(f"<p>{esc(note)}</p>" for note in message.notes),
        f'<p><a href="{esc(message.link)}">{esc(message.words["open"])}</a></p>'
        if message.link
        else "",
        f'<p style="color:#5f6368;font-size:12px">{esc(message.footer)}</p></body></html>',
    ]
    return "".join(parts)


def _listed(heading: str, lines: tuple[str, ...], tag: str) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<p><b>{html.escape(heading)}</b></p><{tag}>{items}</{tag}>"


class _RefusedError(Exception):
    """The server offers less than the settings demand."""


@dataclass(slots=True, kw_only=True)
class MailChannel:
    """Sends mail for one endpoint.

    Parameters
    ----------
    endpoint
        Its name.
    mail, password
        Server, login and recipients.
    style
        Language, zone, link.
    connect_seconds, total_seconds
        Time to connect, and for the whole attempt.
    allow_private
        Whether the server may have a private address.
    allowed
        Private addresses that every endpoint may have.
    ca_file
        Authorities to trust instead of the system's.
    rate
        How much the server takes.
    resolver, clock
        Host and port to addresses; unix seconds.
    """

    endpoint: str
    mail: MailSettings
    style: Style
    connect_seconds: float
    total_seconds: float
    clock: Callable[[], float]
    password: str = ""
    allow_private: bool = False
    allowed: Allowed = Allowed()  # noqa: RUF009 - frozen
    ca_file: Path | None = None
    rate: Rate | None = None
    resolver: Callable[[str, int], list[str]] = resolve
    digests: bool = True

    def deliver(self, notice: Notice) -> Outcome:
        """Send one mail."""
        found = build_mail(
            notice, self.style, self.mail, endpoint=self.endpoint, now_seconds=self.clock()
        )
        try:
            self._send(found)
        except (_RefusedError, RefusedAddressError) as exc:
            return Outcome(verdict=Verdict.PERMANENT, error=str(exc))
        except (smtplib.SMTPException, OSError) as exc:
            return _failure(exc, self.mail.server)
        return Outcome(verdict=Verdict.DELIVERED, status=250)

    def _send(self, found: EmailMessage) -> None:
        host, port = self.mail.server, self.mail.port
        deadline = Deadline(self.total_seconds)
        check_port(host, port)
        addresses = self.resolver(host, port)
        address = check_addresses(
            host, addresses, allow_private=self.allow_private, allowed=self.allowed
        )
        context = None if self.mail.tls == "none" else tls_context(self.ca_file)
        server = _Server(host, address, deadline, self.connect_seconds)
        try:
            server.open(port, context if self.mail.tls == "implicit" else None)
            server.ehlo_or_helo_if_needed()
            if context is not None and self.mail.tls == "starttls":
                if not server.has_extn("starttls"):
                    raise _RefusedError(f"{host} does not offer STARTTLS; nothing was sent")
                server.starttls(context=context)
                server.ehlo()
            if self.mail.username is not None:
                server.login(self.mail.username, self.password)
            refused = server.send_message(found)
            if refused:  # some were taken: sending again would repeat it to them
                raise _RefusedError(f"{host} refused {len(refused)} of the recipients")
            server.bye()
        finally:
            server.close()


class _Server(smtplib.SMTP):
    """A connection to a judged address under the server's name, within a deadline."""

    def __init__(self, host: str, address: str, deadline: Deadline, connect: float) -> None:
        super().__init__(local_hostname=socket.gethostname())
        self._name, self._address = host, address
        self._deadline, self._connect = deadline, connect
        self._host = host  # the name that starttls() checks the certificate against

    def open(self, port: int, context: ssl.SSLContext | None) -> None:
        """Connect, with TLS from the first byte if a context is given; read the greeting."""
        sock = socket.create_connection((self._address, port), self._deadline.left(self._connect))
        if context is not None:
            try:
                sock = context.wrap_socket(sock, server_hostname=self._name)
            except OSError:
                sock.close()
                raise
        self.sock = sock
        self.file = None
        code, said = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, said)

    def send(self, s: object) -> None:
        """Send within what is left of the attempt."""
        self._bound()
        super().send(s)  # type: ignore[arg-type]  # typeshed wants a buffer or text

    def getreply(self) -> tuple[int, bytes]:
        """Read a reply line by line, each within what is left."""
        self._bound()
        if self.file is None and self.sock is not None:
            self.file = _Lines(self.sock, self._deadline)
        return super().getreply()

    def _bound(self) -> None:
        if self.sock is not None:
            self.sock.settimeout(self._deadline.left())

    def bye(self) -> None:
        """Say goodbye; the mail is taken by now, so what goes wrong here does not matter."""
        try:
            self.quit()
        except (smtplib.SMTPException, OSError):
            return


class _Lines:
    """Lines of a socket, each read within what is left: a server may drip bytes."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._deadline, self._rest = sock, deadline, b""

    def readline(self, limit: int = -1) -> bytes:
        while b"\n" not in self._rest and (limit < 0 or len(self._rest) < limit):
            self._sock.settimeout(self._deadline.left())
            found = self._sock.recv(4096)
            if not found:
                break
            self._rest += found
        end = self._rest.find(b"\n") + 1 or len(self._rest)
        end = end if limit < 0 else min(end, limit)
        line, self._rest = self._rest[:end], self._rest[end:]
        return line

    def close(self) -> None:
        self._rest = b""


def _failure(exc: Exception, host: str) -> Outcome:
    """Put a failure into words; servers' own texts are left out, they repeat addresses."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        error = f"the TLS certificate of {host} is not trusted: {exc.verify_message}"
        return Outcome(verdict=Verdict.PERMANENT, error=error)
    if isinstance(exc, smtplib.SMTPResponseException):
        return _answered(exc.smtp_code)
    if isinstance(exc, smtplib.SMTPRecipientsRefused):
        return _answered(max((code for code, _ in exc.recipients.values()), default=550))
    if isinstance(exc, smtplib.SMTPNotSupportedError):
        error = f"{host} does not offer what the settings need (login, or UTF-8 in addresses)"
        return Outcome(verdict=Verdict.PERMANENT, error=error)
    error = f"no answer from {host}: {type(exc).__name__}"
    return Outcome(verdict=Verdict.TRANSIENT, error=error, unsure=True)


def _answered(code: int) -> Outcome:
    # 5xx of SMTP is for good, the opposite of HTTP's: the status is kept in the words alone, so
    # that the breaker does not take a refused recipient for a server that is down.
    verdict = Verdict.PERMANENT if 500 <= code < 600 else Verdict.TRANSIENT
    return Outcome(
        verdict=verdict,
        status=None if code == 421 else 400,
        error=f"the mail server answered {code}",
    )

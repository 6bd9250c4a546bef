"""A small web service: documents from a directory, asked for in SOAP 1.1, with or without WS-Security.

A process of its own, standard library only, on the loopback only. It imports nothing of ztune, runs as an
unprivileged user, under the recorder, and can be killed without harm. It reads commands from standard input,
each a line with a word, a tab and a JSON object, and answers with lines of JSON on standard output.
``http_load.py`` beside it is the other end.

``POST /documents`` with an envelope whose body is ``<GetDocument><name>0000017</name></GetDocument>`` is
answered with the document. ``POST /warm`` is answered with nothing and not counted, but verified all the
same. What is refused is answered with status 500 and a fault, as SOAP over HTTP has it; the reason is in the
status line too, because a load generator keeps that.

Security is that of the OASIS standard *WS-Security: UsernameToken Profile 1.1*, section 3.1: a
``UsernameToken`` with ``PasswordDigest = Base64(SHA-1(nonce + created + password))``, the nonce decoded; and
a ``Timestamp`` as in *SOAP Message Security 1.1*, section 10.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import socketserver
import threading
import time
import xml.etree.ElementTree as ET
from collections import deque
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ztune.onhost.jobs.client_program import serve

HOST = "127.0.0.1"
WINDOW_SECONDS = 300.0
"""How old a message may be; the profile recommends at least five minutes."""
SKEW_SECONDS = 5.0
"""How far a client's clock may be ahead."""
LARGEST_REQUEST = 1 << 20
CHUNK = 1 << 16
"""Bytes of a document that are read in one call."""

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
_OASIS = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"
WSSE = f"{_OASIS}wssecurity-secext-1.0.xsd"
WSU = f"{_OASIS}wssecurity-utility-1.0.xsd"
PASSWORD_DIGEST = f"{_OASIS}username-token-profile-1.0#PasswordDigest"
BASE64_BINARY = f"{_OASIS}soap-message-security-1.0#Base64Binary"

_NAME = re.compile(r"\d{7,12}")
_ANSWER = f'<?xml version="1.0" encoding="UTF-8"?>\n<s:Envelope xmlns:s="{SOAP}"><s:Body>'.encode()
_HEAD = _ANSWER + b"<Document>"
_TAIL = b"</Document></s:Body></s:Envelope>\n"


class Fault(Exception):
    """A request that is not answered with a document: the fault's code and a reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class CannotServe(Exception):
    """The service can't begin; the text is a sentence for a person."""


def path_of(root: Path, name: str) -> Path:
    """Return where the document ``name`` lies: a thousand to a folder."""
    return root / name[:-3] / f"{name}.txt"


class Security:
    """What a message must carry, and the nonces that were used."""

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self.password = password
        self._turn = threading.Lock()
        self._used: set[bytes] = set()
        self._order: deque[tuple[float, bytes]] = deque()

    def verify(self, envelope: ET.Element) -> None:
        """Raise ``Fault`` unless the envelope carries a token and a timestamp that are in order."""
        headers = envelope.findall(f"{{{SOAP}}}Header/{{{WSSE}}}Security")
        if len(headers) != 1:
            raise Fault("wsse:InvalidSecurity", f"there are {len(headers)} Security headers instead of one")
        now = time.time()
        stamp = _only(headers[0], WSU, "Timestamp")
        token = _only(headers[0], WSSE, "UsernameToken")
        _fresh(_text(stamp, WSU, "Created"), now, "the Timestamp")
        if _time(_text(stamp, WSU, "Expires")) <= now:
            raise Fault("wsu:MessageExpired", "the Timestamp has expired")
        created = _text(token, WSU, "Created")
        _fresh(created, now, "the UsernameToken")
        nonce = _nonce(token)
        password = _only(token, WSSE, "Password")
        if password.get("Type") != PASSWORD_DIGEST:
            raise Fault("wsse:InvalidSecurity", "the Password is no PasswordDigest")
        made = hashlib.sha1(nonce + created.encode() + self.password.encode()).digest()
        given = (password.text or "").strip().encode()
        known = hmac.compare_digest(_text(token, WSSE, "Username").encode(), self.user.encode())
        # One answer for both, as whoever guesses must not learn which of them was right.
        if not (hmac.compare_digest(given, base64.b64encode(made)) and known):
            raise Fault("wsse:FailedAuthentication", "wrong user or wrong password digest")
        self._use(nonce, now)

    def _use(self, nonce: bytes, now: float) -> None:
        """Take note of ``nonce``; raise ``Fault`` if it was used while its message could still be fresh."""
        with self._turn:
            while self._order and self._order[0][0] < now:
                self._used.discard(self._order.popleft()[1])
            if nonce in self._used:
                raise Fault("wsse:InvalidSecurityToken", "the nonce was used before")
            self._used.add(nonce)
            self._order.append((now + WINDOW_SECONDS + SKEW_SECONDS, nonce))


def _only(parent: ET.Element, namespace: str, name: str) -> ET.Element:
    found = parent.findall(f"{{{namespace}}}{name}")
    if len(found) != 1:
        raise Fault("wsse:InvalidSecurity", f"there are {len(found)} elements {name} instead of one")
    return found[0]


def _text(parent: ET.Element, namespace: str, name: str) -> str:
    return (_only(parent, namespace, name).text or "").strip()


def _time(text: str) -> float:
    """Return an ``xsd:dateTime`` as seconds since 1970."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Fault("wsse:InvalidSecurity", f"{text[:40]!a} is no time") from None
    if found.tzinfo is None:
        raise Fault("wsse:InvalidSecurity", f"{text[:40]!a} names no time zone")
    return found.timestamp()


def _fresh(created: str, now: float, what: str) -> None:
    age = now - _time(created)
    if age > WINDOW_SECONDS:
        raise Fault("wsu:MessageExpired", f"{what} is older than {WINDOW_SECONDS:.0f} s")
    if age < -SKEW_SECONDS:
        raise Fault("wsu:MessageExpired", f"{what} is of the future")


def _nonce(token: ET.Element) -> bytes:
    element = _only(token, WSSE, "Nonce")
    if element.get("EncodingType", BASE64_BINARY) != BASE64_BINARY:
        raise Fault("wsse:InvalidSecurity", "the Nonce is not in Base64")
    try:
        nonce = base64.b64decode((element.text or "").strip(), validate=True)
    except binascii.Error:
        raise Fault("wsse:InvalidSecurity", "the Nonce is not in Base64") from None
    if len(nonce) < 8:
        raise Fault("wsse:InvalidSecurity", "the Nonce is shorter than 8 bytes")
    return nonce


class Service(socketserver.ThreadingTCPServer):
    """The listening service, and what it counts. A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, root: Path, port: int, security: Security | None) -> None:
        self.root = root
        self.security = security
        self._turn = threading.Lock()
        self._answered = self._verified = self._bytes = 0
        self._read_seconds = 0.0
        self._refused: dict[str, int] = {}
        super().__init__((HOST, port), Handler)

    def answered(self, size: int, read_seconds: float) -> None:
        """Count a document of ``size`` bytes that took ``read_seconds`` to open and read."""
        with self._turn:
            self._answered += 1
            self._verified += self.security is not None
            self._bytes += size
            self._read_seconds += read_seconds

    def refused(self, reason: str) -> None:
        """Count a request that was not answered."""
        with self._turn:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def counts(self) -> dict[str, Any]:
        """Return what was counted so far."""
        with self._turn:
            return {
                "answered": self._answered,
                "verified": self._verified,
                "bytes": self._bytes,
                "read_seconds": self._read_seconds,
                "refused": dict(self._refused),
            }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Service
    protocol_version = "HTTP/1.1"
    server_version = "ztune"
    sys_version = ""
    disable_nagle_algorithm = True
    wbufsize = CHUNK

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: a log line for each request would be I/O that is nobody's."""

    def do_POST(self) -> None:
        """Answer a request with a document or a fault."""
        try:
            name = self._asked_for()
            if self.path == "/warm":
                self._answer(200, "OK", _HEAD + _TAIL)
            elif self.path == "/documents":
                self._send(name)
            else:
                raise Fault("s:Client", "there is nothing but /documents and /warm")
        except Fault as refused:
            self.server.refused(str(refused))
            text = f"<s:Fault><faultcode>{refused.code}</faultcode><faultstring>{escape(refused.reason)}"
            fault = _ANSWER + f"{text}</faultstring></s:Fault></s:Body></s:Envelope>\n".encode()
            self._answer(500, str(refused), fault)

    def _answer(self, status: int, reason: str, body: bytes) -> None:
        self.send_response(status, reason)
        self._headers(len(body))
        self.wfile.write(body)

    def _headers(self, length: int) -> None:
        self.send_header("Content-Type", "text/xml; charset=utf-8")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _asked_for(self) -> str:
        """Return the name of the document that the request asks for; raise ``Fault``."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST_REQUEST:
            # What follows can't be told from the next request.
            self.close_connection = True
            raise Fault("s:Client", f"a request has a Content-Length of at most {LARGEST_REQUEST}")
        body = self.rfile.read(int(length))
        # SOAP 1.1 forbids it (section 3), and entities could grow without end.
        if b"<!DOCTYPE" in body:
            raise Fault("s:Client", "a message must not have a document type")
        try:
            envelope = ET.fromstring(body)
        except ET.ParseError:
            raise Fault("s:Client", "the request is not XML") from None
        if envelope.tag != f"{{{SOAP}}}Envelope":
            raise Fault("s:VersionMismatch", "the request is no SOAP 1.1 envelope")
        if self.server.security is not None:
            self.server.security.verify(envelope)
        return (envelope.findtext(f"{{{SOAP}}}Body/GetDocument/name") or "").strip()

    def _send(self, name: str) -> None:
        began = time.monotonic()
        try:
            if not _NAME.fullmatch(name):
                raise FileNotFoundError
            # Without Python's buffer: each read call is of the size that is asked for.
            file = path_of(self.server.root, name).open("rb", buffering=0)
        except FileNotFoundError:
            raise Fault("s:Client", "there is no such document") from None
        with file:
            size = left = file.seek(0, 2)
            file.seek(0)
            self.send_response(200)
            self._headers(len(_HEAD) + size + len(_TAIL))
            self.wfile.write(_HEAD)
            taken = time.monotonic() - began
            while left:
                began = time.monotonic()
                data = file.read(min(CHUNK, left))
                taken += time.monotonic() - began
                if not data:
                    raise OSError(f"document {name} ends {left} bytes too early")
                self.wfile.write(data)
                left -= len(data)
        # Before the end is sent, so that a client that has it was counted.
        self.server.answered(size, taken)
        self.wfile.write(_TAIL)


class Program:
    """The service as the commands know it."""

    def __init__(self) -> None:
        self.service: Service | None = None

    def serve(
        self, root: str, port: int, user: str = "", password: str = "", secure: bool = False
    ) -> dict[str, Any]:
        """Listen on ``port`` of the loopback, 0 for any that is free; return which it is."""
        try:
            self.service = Service(Path(root), port, Security(user, password) if secure else None)
        except OSError as error:
            raise CannotServe(f"it can't listen on {HOST}:{port}: {error.strerror}") from None
        threading.Thread(target=self.service.serve_forever, daemon=True).start()
        return {"port": self.service.server_address[1]}

    def counts(self) -> dict[str, Any]:
        """Return what was counted since ``serve``."""
        assert self.service is not None
        return self.service.counts()

    def close(self) -> dict[str, Any]:
        """Do nothing: what is asked for ends with the program."""
        return {}


if __name__ == "__main__":
    serve(Program(), plain=(CannotServe,))

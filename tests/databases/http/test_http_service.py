"""The web service of ``http``, asked over real HTTP: what it answers, and what it refuses and why."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ztune.databases.http.onhost import service
from ztune.databases.http.onhost.documents import Documents, name_of
from ztune.errors import ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.jobs.conversation import Conversation

USER, PASSWORD = "ann", "pass word ü"
DOCUMENTS = Documents(total=200_000, typical=8192, seed=7)


class Running:
    """The program as it runs in the workload, and a client."""

    def __init__(self, home: Path, root: Path, *, secure: bool, port: int = 0) -> None:
        source = Path(service.__file__)
        self.talk = Conversation(
            [sys.executable, "-I", "-B", source],
            what="the web service",
            account=Account("me", os.geteuid(), os.getegid(), switch=False),
            home=home,
            log=home / "log",
        )
        wanted = {"root": str(root), "port": port, "user": USER, "password": PASSWORD, "secure": secure}
        self.port = int(self.talk.ask("serve", json.dumps(wanted))["port"])

    def post(self, body: bytes | str, path: str = "/documents", **headers: str) -> tuple[int, str, bytes]:
        """Return status, reason and body of the answer."""
        connection = http.client.HTTPConnection(service.HOST, self.port, timeout=30)
        data = body.encode() if isinstance(body, str) else body
        connection.request("POST", path, data, {"Content-Type": "text/xml", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.reason, answer.read()
        connection.close()
        return found

    def refusal(self, body: bytes | str) -> str:
        """Return why ``body`` is refused: in the status line and in the fault."""
        status, reason, data = self.post(body)
        fault = ET.fromstring(data).find(f".//{{{service.SOAP}}}Fault")
        assert status == 500 and fault is not None, data
        assert reason == f"{fault.findtext('faultcode')}: {fault.findtext('faultstring')}"
        return reason

    def counts(self) -> dict[str, Any]:
        return self.talk.ask("counts", "{}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents")
    DOCUMENTS.write(path, lambda _done: None)
    return path


@pytest.fixture
def plain(tmp_path: Path, root: Path) -> Iterator[Running]:
    made = Running(tmp_path, root, secure=False)
    yield made
    made.talk.stop()


@pytest.fixture
def secure(tmp_path: Path, root: Path) -> Iterator[Running]:
    made = Running(tmp_path, root, secure=True)
    yield made
    made.talk.stop()


def at(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def header(
    *,
    user: str = USER,
    password: str = PASSWORD,
    nonce: bytes | None = None,
    created: str | None = None,
    stamp: str | None = None,
    expires: str | None = None,
    digest: str | None = None,
    kind: str = service.PASSWORD_DIGEST,
) -> str:
    """Return a Security header as the profile has it, unless told otherwise."""
    nonce = os.urandom(16) if nonce is None else nonce
    created = at() if created is None else created
    made = base64.b64encode(hashlib.sha1(nonce + created.encode() + password.encode()).digest()).decode()
    return (
        f'<w:Security xmlns:w="{service.WSSE}" xmlns:u="{service.WSU}">'
        f"<u:Timestamp><u:Created>{stamp or at()}</u:Created>"
        f"<u:Expires>{expires or at(60)}</u:Expires></u:Timestamp>"
        f"<w:UsernameToken><w:Username>{user}</w:Username>"
        f'<w:Password Type="{kind}">{digest or made}</w:Password>'
        f'<w:Nonce EncodingType="{service.BASE64_BINARY}">{base64.b64encode(nonce).decode()}</w:Nonce>'
        f"<u:Created>{created}</u:Created></w:UsernameToken></w:Security>"
    )


def message(number: int = 3, security: str = "") -> str:
    return (
        f'<s:Envelope xmlns:s="{service.SOAP}"><s:Header>{security}</s:Header><s:Body><GetDocument>'
        f"<name>{name_of(number)}</name></GetDocument></s:Body></s:Envelope>"
    )


def test_a_document_comes_whole_and_is_counted(plain: Running) -> None:
    for number in (0, DOCUMENTS.count - 1):
        status, _, data = plain.post(message(number))
        found = ET.fromstring(data).findtext(f"{{{service.SOAP}}}Body/Document")
        assert status == 200 and found is not None
        assert found.encode() == DOCUMENTS.text(number)
        assert found.endswith(f"end {DOCUMENTS.mark(number)}\n")
    counts = plain.counts()
    assert counts["answered"] == 2 and counts["verified"] == 0 and counts["refused"] == {}
    assert counts["bytes"] == DOCUMENTS.size(0) + DOCUMENTS.size(DOCUMENTS.count - 1)
    assert 0 < counts["read_seconds"] < 10


def test_warming_is_verified_but_not_counted(secure: Running) -> None:
    status, _, data = secure.post(message(0, header()), "/warm")
    assert status == 200 and b"<Document></Document>" in data
    assert secure.post(message(0), "/warm")[0] == 500
    counts = secure.counts()
    assert (counts["answered"], counts["verified"], sum(counts["refused"].values())) == (0, 0, 1)


def test_what_is_no_request_for_a_document_is_refused(plain: Running) -> None:
    body = message().replace("0000003", "{}")
    for name in ("9999999", "../x", "", "0000003/.."):
        assert plain.refusal(body.format(name)) == "s:Client: there is no such document"
    assert plain.refusal("GET me") == "s:Client: the request is not XML"
    assert "no SOAP 1.1 envelope" in plain.refusal("<a/>")
    bomb = '<!DOCTYPE a [<!ENTITY b "b">]>' + message()
    assert "must not have a document type" in plain.refusal(bomb)
    assert "nothing but /documents" in plain.post(message(), "/other")[1]
    status, reason, _ = plain.post(b"", **{"Content-Length": str(service.LARGEST_REQUEST + 1)})
    assert status == 500 and "Content-Length of at most" in reason
    assert plain.counts()["answered"] == 0 and sum(plain.counts()["refused"].values()) == 9


def test_a_digest_is_verified(secure: Running) -> None:
    status, _, data = secure.post(message(5, header()))
    assert status == 200 and DOCUMENTS.text(5) in data
    counts = secure.counts()
    assert (counts["answered"], counts["verified"], counts["refused"]) == (1, 1, {})


def test_a_nonce_is_good_for_one_request(secure: Running) -> None:
    same = header()
    assert secure.post(message(1, same))[0] == 200
    assert secure.refusal(message(1, same)) == "wsse:InvalidSecurityToken: the nonce was used before"
    # For another document or at another time too.
    nonce = os.urandom(16)
    assert secure.post(message(1, header(nonce=nonce)))[0] == 200
    assert "used before" in secure.refusal(message(2, header(nonce=nonce, created=at(-1))))
    # A message that is refused uses up nothing: nobody can spoil another's nonce.
    spared = os.urandom(16)
    assert "digest" in secure.refusal(message(1, header(nonce=spared, password="guess")))
    assert secure.post(message(1, header(nonce=spared)))[0] == 200


def test_of_many_that_come_at_once_one_nonce_passes_once(secure: Running) -> None:
    body = message(1, header())
    with ThreadPoolExecutor(16) as pool:
        statuses = [status for status, _, _ in pool.map(secure.post, [body] * 32)]
    assert statuses.count(200) == 1 and statuses.count(500) == 31


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"password": "other"}, "wsse:FailedAuthentication: wrong user or wrong password digest"),
        ({"user": "bob"}, "wsse:FailedAuthentication: wrong user or wrong password digest"),
        ({"digest": "AAAA"}, "wsse:FailedAuthentication: wrong user or wrong password digest"),
        ({"kind": f"{service._OASIS}username-token-profile-1.0#PasswordText"}, "no PasswordDigest"),
        ({"nonce": b"short"}, "the Nonce is shorter"),
        ({"created": "yesterday"}, "is no time"),
        ({"created": "2024-01-01T00:00:00"}, "names no time zone"),
        ({"stamp": "<x/>"}, "is no time"),
    ],
)
def test_a_token_that_is_wrong_is_refused(secure: Running, wrong: dict[str, Any], said: str) -> None:
    assert said in secure.refusal(message(1, header(**wrong)))
    assert secure.counts()["verified"] == 0


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        ({"created": -service.WINDOW_SECONDS - 2}, "the UsernameToken is older than 300 s"),
        ({"created": service.SKEW_SECONDS + 2}, "the UsernameToken is of the future"),
        ({"stamp": -service.WINDOW_SECONDS - 2}, "the Timestamp is older than 300 s"),
        ({"stamp": service.SKEW_SECONDS + 2}, "the Timestamp is of the future"),
        ({"expires": -1}, "the Timestamp has expired"),
    ],
)
def test_the_clock_is_verified(secure: Running, clock: dict[str, float], said: str) -> None:
    values: dict[str, Any] = {name: at(seconds) for name, seconds in clock.items()}
    assert secure.refusal(message(1, header(**values))) == f"wsu:MessageExpired: {said}"
    # Just within it is right.
    near: dict[str, Any] = {name: at(seconds + (4 if seconds < 0 else -4)) for name, seconds in clock.items()}
    assert secure.post(message(1, header(**near)))[0] == 200


def test_a_header_that_lacks_something_is_refused(secure: Running) -> None:
    whole = header()
    assert "there are 0 Security headers" in secure.refusal(message(1))
    assert "there are 2 Security headers" in secure.refusal(message(1, whole + header()))
    for part, name in (("u:Timestamp", "Timestamp"), ("w:Nonce", "Nonce"), ("u:Expires", "Expires")):
        begin, end = whole.index(f"<{part}"), whole.index(f"</{part}>") + len(f"</{part}>")
        cut = whole[:begin] + whole[end:]
        assert f"there are 0 elements {name} instead of one" in secure.refusal(message(1, cut))


def test_a_port_in_use_is_told(tmp_path: Path, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind((service.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = (
            f"the web service failed in 'serve': it can't listen on 127.0.0.1:{port}: Address already in use"
        )
        with pytest.raises(ZtuneError, match=said):
            Running(tmp_path, root, secure=False, port=port)


def test_it_listens_on_the_loopback_only(plain: Running) -> None:
    import psutil

    [listening] = [
        one for one in psutil.Process(plain.talk.program.pid).net_connections() if one.status == "LISTEN"
    ]
    assert listening.laddr == ("127.0.0.1", plain.port)


def test_documents_are_the_same_everywhere_and_compress_as_text_does(root: Path) -> None:
    import lz4.block

    assert DOCUMENTS.found(root)
    sizes = [DOCUMENTS.size(number) for number in range(2000)]
    assert 2048 <= min(sizes) < 2100 and 32_000 < max(sizes) <= 32768
    large = Documents(total=1, typical=4 << 20, seed=1).text(0)
    assert hashlib.sha256(large).hexdigest()[:16] == "f50d293bed98a90c"
    for size, low, high in ((8192, 1.55, 1.7), (131072, 1.9, 2.05)):
        blocks = [large[begin : begin + size] for begin in range(0, len(large) - size, size)]
        ratio = size * len(blocks) / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks)
        assert low < ratio < high, (size, ratio)


def test_a_program_that_is_told_nonsense_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", service.__file__],
        input="serve\t{}\nnothing\t{}\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert [list(json.loads(line)) for line in done.stdout.splitlines()] == [["error"], ["error"]]

"""Which fleets are talked to, and which are refused."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import pytest
from invoked import invoke

from ztune.errors import InputError, MissingError
from ztune.fleet import connect


def test_addresses() -> None:
    assert connect.parse("local-cluster").workers == 0
    assert connect.parse("local-cluster:3").workers == 3
    found = connect.parse("dask://db1")
    assert (found.scheme, found.host, found.port) == ("dask", "db1", 8786)
    assert connect.parse("tls://[::1]:9").port == 9


@pytest.mark.parametrize(
    "text",
    ["", "local-cluster:0", "local-cluster:x", "ssh://db1", "dask://", "dask://a:b", "dask://a/b", "http://a",
     "dask://user@a:1", "dask://a:99999"],
)  # fmt: skip
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(InputError, match=r"layouts are replayed on local-cluster, .* or tls://HOST:PORT"):
        connect.parse(text)


def test_the_command_refuses_it_before_all_else() -> None:
    code, _, err = invoke("screen", "nowhere.trace", "--on", "ssh://db1")
    assert code == 2 and "--on ssh://db1" in err


def test_another_machine_takes_encryption() -> None:
    with (
        pytest.raises(InputError, match=r"not encrypted.*`ztune fleet certs DIR`.*tls://192\.0\.2\.1:8786"),
        connect.fleet("tcp://192.0.2.1", print),
    ):
        pass


def test_tls_takes_certificates() -> None:
    with pytest.raises(MissingError, match="ztune fleet certs"), connect.fleet("tls://127.0.0.1:1", print):
        pass


def test_what_dask_says_of_connections_is_not_shown() -> None:
    with pytest.raises(MissingError), connect.fleet("tls://127.0.0.1:1", print):
        pass
    assert not logging.getLogger("distributed.scheduler").isEnabledFor(logging.CRITICAL)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connect.listeners(port) == {os.geteuid()}
    with (
        pytest.raises(MissingError, match="nothing listens"),
        connect.fleet(f"dask://127.0.0.1:{port}", print),
    ):
        pass


def test_a_scheduler_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "listeners", lambda _port: {os.geteuid() + 7})
    with pytest.raises(InputError, match="that of user"), connect.fleet("dask://127.0.0.1:1", print):
        pass


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingError, match=r"pip install 'ztune\[fleet\]'"),
        connect.fleet("local-cluster", print),
    ):
        pass


def test_settings_that_others_can_write_prove_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(InputError, match=r"can be written by others.*chmod go-w"):
        connect._check_ours(path)
    with pytest.raises(InputError, match="No such file"):
        connect._check_ours(tmp_path / "none")

"""Certificates of a fleet."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from invoked import invoke


def test_they_are_made_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    code, out, err = invoke("fleet", "certs", str(folder), "--days", "30")
    assert code == 0, err
    assert f"export DASK_CONFIG={folder}" in out
    assert {p.name for p in folder.iterdir()} == {"ca.pem", "fleet.pem", "fleet.key", "dask.yaml"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    ours = x509.load_pem_x509_certificate((folder / "fleet.pem").read_bytes())
    ours.verify_directly_issued_by(authority)
    key = serialization.load_pem_private_key((folder / "fleet.key").read_bytes(), None)
    assert key.public_key() == ours.public_key() != authority.public_key()
    assert (ours.not_valid_after_utc - ours.not_valid_before_utc).days == 30
    dask = yaml.safe_load((folder / "dask.yaml").read_text())["distributed"]
    assert dask["admin"]["low-level-log-length"] == 10, "what bounds a scheduler's memory"
    tls = dask["comm"]["tls"]
    assert tls["worker"] == {"cert": f"{folder}/fleet.pem", "key": f"{folder}/fleet.key"}


def test_those_in_use_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "ca.pem").write_text("in use")
    code, _, err = invoke("fleet", "certs", str(folder))
    assert code == 2 and "there already" in err
    assert (folder / "ca.pem").read_text() == "in use"


@pytest.mark.parametrize("name", ["a#b", "a: b", "none/certs"])
def test_where_they_can_not_be(tmp_path: Path, name: str) -> None:
    code, _, err = invoke("fleet", "certs", str(tmp_path / name))
    assert code == 2 and str(tmp_path) in err
    assert not list(tmp_path.iterdir())

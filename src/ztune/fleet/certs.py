"""Makes what the machines of a fleet know each other by: an authority, one certificate, and Dask's settings.

The authority's key is not kept: nobody can make another certificate that the fleet takes.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from ztune.errors import InputError, MissingError

DAYS = 365
CONFIG = """\
# Dask reads this where DASK_CONFIG names this directory: on every machine of the fleet, the same path.
distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      ca-file: {folder}/ca.pem
      scheduler: {{cert: {folder}/fleet.pem, key: {folder}/fleet.key}}
      worker: {{cert: {folder}/fleet.pem, key: {folder}/fleet.key}}
      client: {{cert: {folder}/fleet.pem, key: {folder}/fleet.key}}
  admin:
    # Of each worker a scheduler keeps so many transitions and events, for Dask's developers: by default a
    # thousand, by which it grows by 12 MiB with each 1,000 layouts.
    low-level-log-length: 10
"""


def make(folder: Path, days: int = DAYS) -> datetime.date:
    """Write ca.pem, fleet.pem, fleet.key and dask.yaml into ``folder``, a new directory that this user alone
    can read; return the day until which they are good.

    Raises InputError where it is there already or can't be made; MissingError without cryptography.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise MissingError(
            "certificates are made with cryptography, which is not installed here: pip install 'ztune[fleet]'"
        ) from None
    folder = folder.absolute()
    if any(c in str(folder) for c in "{}#,:'\"\n"):
        raise InputError(f"the name {folder} has a character that means something in Dask's settings")

    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, authority: bool
    ) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("ztune fleet authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), True)
            .sign(by, hashes.SHA256())
        )

    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    ca = certificate("ztune fleet authority", authority, authority, True)
    ours = certificate("ztune fleet", key, authority, False)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {
        "ca.pem": ca.public_bytes(pem),
        "fleet.pem": ours.public_bytes(pem),
        "fleet.key": private,
        "dask.yaml": CONFIG.format(folder=folder).encode(),
    }
    try:
        folder.mkdir(mode=0o700)
        for name, data in files.items():
            fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
    except FileExistsError:
        raise InputError(
            f"{folder} is there already; name a new directory, so that no certificate in use is replaced"
        ) from None
    except OSError as error:
        raise InputError(f"can't write {folder}: {error.strerror}") from None
    return until.date()

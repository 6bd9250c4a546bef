"""Subscribers of a telephone company as LDIF entries: what a directory of such a company holds.

Names, streets and towns repeat as in life, some far more often than others; numbers, identifiers and keys
hardly do. So the text compresses as real entries do (`tests/databases/ldap/test_ldif.py` holds it to bounds).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from ztune.databases.ldap.onhost.ldif import line

SUFFIX = "dc=telco,dc=example"
_BRANCH = f"ou=subscribers,{SUFFIX}"

_GIVEN = """
    Maria Anna Peter Michael Thomas Andrea Elena Daniel Julia Laura Martin Sofia David Christian Eva Paul
    Lucas Sarah Stefan Nina Robert Claudia Marco Katharina Jan Clara Alexander Ines Oliver Hanna Simon
    Teresa Georg Monika Felix Lisa Andreas Carla Johann Petra Tomas Irene Erik Barbara Sven Helena Victor
    Rita Karl Gabriela Matthias Silvia Antonio Birgit Nikolas Vera Jürgen Renée Søren Zoë François Jörg
    Małgorzata Günther Åsa Emil Olga Hugo Marta Leo Paula Max Greta Otto Ida Bruno Alma Theo Edith Kurt
    Lotte Ralf Doris Uwe Heidi
""".split()  # noqa: SIM905 - quoted words would fill the page
_FAMILY = """
    Müller Schmidt Novak Rossi Martin Garcia Silva Jensen Hansen Larsson Meyer Wagner Becker Schulz
    Hoffmann Fischer Weber Koch Bauer Richter Klein Wolf Schröder Neumann Schwarz Zimmermann Braun Krüger
    Hofmann Hartmann Lange Werner Krause Lehmann Köhler Herrmann König Walter Mayer Huber Kaiser Fuchs
    Peters Lang Scholz Möller Weiß Jung Hahn Schubert Vogel Friedrich Keller Günther Frank Berger Winkler
    Roth Beck Lorenz Baumann Franke Albrecht Schuster Simon Ludwig Böhm Winter Kraus Schumacher Krämer
    Vogt Stein Jäger Otto Sommer Groß Seidel Heinrich Brandt Haas Schreiber Graf Dietrich Ziegler Kuhn
    Kühn Pohl Engel Horn Busch Bergmann Thomas Voigt Sauer Arnold Pfeiffer Moreau Laurent Lefebvre
    Bertrand Ferrari Russo Bianchi Romano Colombo Ricci Marino Costa Fontana Santos Pereira Oliveira
    Ferreira Kowalski Nowak Wiśniewski Lindberg Nilsson Virtanen Korhonen
""".split()  # noqa: SIM905
_TOWNS = (
    *(("Hamburg", "040", 20), ("Berlin", "030", 10), ("München", "089", 80), ("Köln", "0221", 50)),
    *(("Leipzig", "0341", 4), ("Dresden", "0351", 1), ("Stuttgart", "0711", 70), ("Bremen", "0421", 28)),
    *(("Hannover", "0511", 30), ("Nürnberg", "0911", 90), ("Essen", "0201", 45), ("Dortmund", "0231", 44)),
    *(("Freiburg", "0761", 79), ("Kiel", "0431", 24), ("Rostock", "0381", 18), ("Kassel", "0561", 34)),
    *(("Mainz", "06131", 55), ("Erfurt", "0361", 99), ("Augsburg", "0821", 86), ("Münster", "0251", 48)),
)
_STREETS = """
    Hauptstraße Bahnhofstraße Schulstraße Gartenstraße Dorfstraße Bergstraße Lindenweg Kirchplatz
    Marktplatz Ringstraße Waldweg Wiesenweg Goethestraße Schillerstraße Mozartstraße Beethovenstraße
    Uferweg Parkallee Rosenweg Birkenweg Ahornweg Mühlweg Burgstraße Hafenstraße Poststraße Feldstraße
    Talstraße Sonnenweg
""".split()  # noqa: SIM905
_TARIFFS = (
    *("Smart S 2022", "Smart M 2022", "Smart L 2023", "Unlimited 5G", "Prepaid Classic", "Prepaid Weekly"),
    *("Family Share 4", "Business Flat EU", "Business Flat World", "Data Only 20 GB", "Machine to Machine"),
)
_SERVICES = (
    *("voice", "sms", "mms", "data-4g", "data-5g", "volte", "vowifi", "voicemail", "roaming-eu"),
    *("roaming-world", "call-forwarding", "call-waiting", "call-barring", "conference", "caller-id"),
    *("ring-back-tone", "emergency-location", "premium-numbers", "mobile-payment", "parental-control"),
)
_STATES = ("active", "active", "active", "active", "active", "active", "suspended", "barred", "provisioned")
_APNS = ("internet.telco.example", "corporate.telco.example", "ims.telco.example", "m2m.telco.example")
_DEVICES = (
    *(
        "Fairphone 5",
        "Galaxy A15",
        "Galaxy S23",
        "iPhone 13",
        "iPhone 15",
        "Pixel 7a",
        "Pixel 8",
        "Xperia 10",
    ),
    *("Redmi Note 12", "Nokia G22", "Moto G54", "Router CPE 45"),
)
_CLASSES = b"".join(
    b"objectClass: %s\n" % name
    for name in (b"top", b"person", b"organizationalPerson", b"inetOrgPerson", b"telcoSubscriber")
)

# Of a UUID, as ITU-T X.667 gives everybody an arc to name things with.
_ARC = "2.25.93099405956558834636792833053359776856"
_STRING, _NUMBERS = "1.3.6.1.4.1.1466.115.121.1.15", "1.3.6.1.4.1.1466.115.121.1.36"
_ATTRIBUTES = {
    "msisdn": _NUMBERS, "imsi": _NUMBERS, "imei": _NUMBERS, "iccid": _NUMBERS, "telcoTariff": _STRING,
    "telcoState": _STRING, "telcoAccount": _STRING, "telcoSince": _STRING, "telcoApn": _STRING,
    "telcoDevice": _STRING, "telcoKey": _STRING, "telcoService": _STRING,
}  # fmt: skip
_RULES = {_STRING: "caseIgnoreMatch", _NUMBERS: "numericStringMatch"}
INDEXED = ("msisdn", "imsi", "telcoAccount")
"""Attributes of ours that a subscriber is looked up by."""


def schema() -> bytes:
    """Return the schema of the entries, as LDIF that both servers read."""
    lines = [
        "dn: cn=schema",
        "objectClass: top",
        "objectClass: ldapSubentry",
        "objectClass: subschema",
        "cn: schema",
    ]
    lines += [
        f"attributeTypes: ( {_ARC}.1.{n} NAME '{name}' EQUALITY {_RULES[syntax]} SYNTAX {syntax} )"
        for n, (name, syntax) in enumerate(_ATTRIBUTES.items(), 1)
    ]
    lines.append(
        f"objectClasses: ( {_ARC}.2.1 NAME 'telcoSubscriber' SUP top AUXILIARY MUST msisdn "
        f"MAY ( {' $ '.join(list(_ATTRIBUTES)[1:])} ) )"
    )
    return "\n".join(lines).encode() + b"\n"


def entries(count: int, services: int, seed: int) -> Iterator[bytes]:
    """Yield the LDIF of ``count`` entries: the root, the branch, and subscribers.

    Args:
        count: how many, 2 at least.
        services: values of ``telcoService`` of each subscriber; each takes about 190 bytes.
        seed: another seed gives other subscribers.
    """
    yield f"dn: {SUFFIX}\nobjectClass: top\nobjectClass: domain\ndc: telco\n".encode()
    yield f"dn: {_BRANCH}\nobjectClass: top\nobjectClass: organizationalUnit\nou: subscribers\n".encode()
    # Of its methods only this one promises to give the same in every version of Python.
    bits = random.Random(seed).getrandbits
    for n in range(count - 2):
        yield _subscriber(n, services, _Draw(bits))


class _Draw:
    """Draws from one stream of bits."""

    def __init__(self, bits: Callable[[int], int]) -> None:
        self._bits = bits

    def number(self, digits: int) -> str:
        """Return ``digits`` decimal digits."""
        return str(self._bits(4 * digits) % 10**digits).zfill(digits)

    def below(self, limit: int) -> int:
        """Return a number from 0 to less than ``limit``."""
        return self._bits(32) % limit

    def often(self, words: Sequence[str]) -> str:
        """Return one of ``words``, the first ones far more often."""
        share = self._bits(24) / (1 << 24)
        return words[int(share * share * len(words))]

    def hexadecimal(self, digits: int) -> str:
        """Return ``digits`` hexadecimal digits."""
        return f"{self._bits(4 * digits):0{digits}x}"

    def date(self) -> str:
        """Return a day of this century, as 2019-03-12."""
        return f"20{10 + self.below(16):02d}-{1 + self.below(12):02d}-{1 + self.below(28):02d}"

    def time(self) -> str:
        """Return a time of day, as 23:07."""
        return f"{self.below(24):02d}:{self.below(60):02d}"


def _subscriber(n: int, services: int, draw: _Draw) -> bytes:
    given, family = draw.often(_GIVEN), draw.often(_FAMILY)
    town, area, post = _TOWNS[draw.below(len(_TOWNS))]
    # Unique by the running number, and scattered: neighbours in the file are none in an index.
    place = (n * 7_368_787 + 1_299_709) % 100_000_007
    msisdn = f"49171{place:09d}"
    street = f"{draw.often(_STREETS)} {1 + draw.below(140)}"
    code = f"{post:02d}{draw.number(3)}"
    uid = f"{_ascii(given)}.{_ascii(family)}.{n}"
    lines = [
        ("cn", f"{given} {family}"),
        ("sn", family),
        ("givenName", given),
        ("uid", uid),
        ("mail", f"{uid}@mail.telco.example"),
        ("telephoneNumber", f"+49 {area[1:]} {draw.number(7)}"),
        ("mobile", f"+49 171 {place:09d}"),
        ("street", street),
        ("l", town),
        ("postalCode", code),
        ("postalAddress", f"{given} {family}${street}${code} {town}$Germany"),
        ("preferredLanguage", "de-DE"),
        ("msisdn", msisdn),
        ("imsi", f"26201{draw.number(10)}"),
        ("imei", f"35{draw.number(13)}"),
        ("iccid", f"8949020{draw.number(12)}"),
        ("telcoAccount", f"{_ascii(town)[:3].upper()}-{draw.number(9)}"),
        ("telcoTariff", draw.often(_TARIFFS)),
        ("telcoState", draw.often(_STATES)),
        ("telcoSince", draw.date()),
        ("telcoApn", draw.often(_APNS)),
        ("telcoDevice", draw.often(_DEVICES)),
        ("telcoKey", draw.hexadecimal(32)),
    ]
    lines += [("telcoService", _service(k, draw)) for k in range(services)]
    head = f"dn: msisdn={msisdn},{_BRANCH}\n".encode()
    return head + _CLASSES + b"".join(line(name, value) for name, value in lines)


def _service(k: int, draw: _Draw) -> str:
    name = _SERVICES[k % len(_SERVICES)]
    return (
        f"name={name}; instance={k // len(_SERVICES)}; state={draw.often(_STATES)}; since={draw.date()}; "
        f"changed={draw.date()}T{draw.time()}Z; by={_ascii(draw.often(_FAMILY))}; "
        f"profile=hlr-{draw.below(12)}/{draw.often(_TARIFFS)}; limit={draw.number(4)}; "
        f"ticket={draw.hexadecimal(20)}; note={draw.often(_STATES)} after order {draw.number(8)}"
    )


_LETTERS = str.maketrans(
    {
        "ä": "ae",
        "ö": "oe",
        "ü": "ue",
        "ß": "ss",
        "é": "e",
        "ë": "e",
        "ç": "c",
        "ø": "o",
        "ł": "l",
        "ś": "s",
        "å": "a",
    }
)


def _ascii(word: str) -> str:
    return word.lower().translate(_LETTERS)

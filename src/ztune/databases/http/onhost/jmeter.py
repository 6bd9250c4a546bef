"""Apache JMeter: where it lies, how it is run without its window, and what its result file says."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import software

VERSION = "5.6.3"
SOFTWARE = f"jmeter-{VERSION}"
_HEAP = "512m"
_COLUMNS = ("timeStamp", "elapsed", "responseCode", "responseMessage", "failureMessage", "success", "URL")

# What its result file holds, whatever the plan or JMeter's own defaults say.
_RESULTS = {
    "output_format": "csv",
    "print_field_names": "true",
    "timestamp_format": "ms",
    "default_delimiter": ",",
    "time": "true",
    "timestamp": "true",
    "response_code": "true",
    "response_message": "true",
    "assertion_results_failure_message": "true",
    "successful": "true",
    "url": "true",
    "subresults": "false",
}


def install(workdir: WorkDir, account: Account, workload: str) -> Path:
    """Return a home of JMeter's in the work directory, where the account can read it.

    As JMeter wants it: the launcher and its settings in ``bin``, its own parts in ``lib/ext``, all else in
    ``lib``.

    Raises:
        MissingError: JMeter was not fetched.
    """
    fetched = software.require(SOFTWARE, f"JMeter {VERSION}", workload)
    jars = sorted(fetched.glob("*.jar"))
    launcher = [jar for jar in jars if jar.name == f"ApacheJMeter-{VERSION}.jar"]
    own = [jar for jar in jars if jar.name.startswith("ApacheJMeter_")]
    home = workdir.sub("jmeter", mode=0o755)
    rest = [jar for jar in jars if jar not in launcher and jar not in own]
    settings = [path for path in fetched.iterdir() if path.suffix != ".jar"]
    for place, files in (("bin", [*launcher, *settings]), ("lib", rest), ("lib/ext", own)):
        software.lend(files, "lent", workdir, account).rename(home / place)
    # It has to be there; JMeter complains at each start otherwise.
    (home / "lib" / "junit").mkdir(mode=0o755)
    return home


def command(
    java: Path, home: Path, *, plan: Path, results: Path, properties: Path, at: Path
) -> list[str | Path]:
    """Return what runs ``plan`` and writes ``results``; JMeter stands in ``at``, where its log goes too."""
    return [
        java,
        f"-Xmx{_HEAP}",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={at}",
        f"-Djava.util.prefs.userRoot={at}",
        # Java's own log goes to standard error, where only what matters is looked for.
        "-Djava.util.logging.config.file=/dev/null",
        "-jar",
        home / "bin" / f"ApacheJMeter-{VERSION}.jar",
        *("-n", "-t", plan, "-l", results, "-j", at / "jmeter.log", "-q", properties),
    ]


def properties(values: Mapping[str, str | int | float]) -> str:
    """Return a file of properties, ``values`` and what makes the result file readable."""
    found = {f"jmeter.save.saveservice.{name}": value for name, value in _RESULTS.items()}
    lines = [f"{name}={_escaped(str(value))}" for name, value in {**found, **values}.items()]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return ``text`` as Java's properties have it: a backslash escapes, and all but ASCII is in UTF-16."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if 33 <= code < 127 and code != 92 else f"\\u{code:04x}" for code in codes)


@dataclass(frozen=True, slots=True)
class Samples:
    """The requests in a result file."""

    count: int
    failed: int
    first_failure: str
    """What JMeter noted of the first that failed; empty if none did."""
    seconds: float
    """From the beginning of the first to the end of the last."""
    latencies_ms: tuple[int, ...]
    """Of each request, from its beginning to the last byte of its answer, sorted."""


def read(path: Path) -> Samples:
    """Read a result file.

    A line without an address is no request: plans note transactions and scripts that way.

    Raises:
        ZtuneError: there is none, or it lacks a column.
    """
    latencies: list[int] = []
    failed, first_failure = 0, ""
    began, ended = 0, 0
    try:
        with os.fdopen(
            own_directory.open_plain(path, os.O_RDONLY), encoding="utf-8", errors="replace", newline=""
        ) as file:
            lines = csv.DictReader(file)
            lacking = [name for name in _COLUMNS if name not in (lines.fieldnames or ())]
            if lacking:
                raise ZtuneError(f"JMeter's result file has no column {lacking[0]}")
            for line in lines:
                if line["URL"] in (None, "", "null"):
                    continue
                start, took = int(line["timeStamp"]), int(line["elapsed"])
                began, ended = min(began or start, start), max(ended, start + took)
                latencies.append(took)
                if line["success"] != "true":
                    failed += 1
                    said = [line[name] for name in ("responseCode", "responseMessage", "failureMessage")]
                    first_failure = first_failure or " ".join([word for word in said if word])[:300]
    except OSError as error:
        raise ZtuneError(f"JMeter left no result file: {error.strerror}") from None
    except ValueError:
        raise ZtuneError("JMeter's result file can't be read: a time in it is no number") from None
    return Samples(len(latencies), failed, first_failure, (ended - began) / 1000, tuple(sorted(latencies)))

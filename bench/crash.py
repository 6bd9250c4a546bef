"""Power cuts: PostgreSQL with and without full_page_writes, SQLite, Valkey, and sync=disabled as the control.

    python bench/crash.py                       200 cuts of each case; some hours
    python bench/crash.py fpw-off …             one case (several may be named)
    python bench/crash.py --cuts 20 --part 10   fewer cuts, and fewer on the same files
    python bench/crash.py --write               put what is there into docs/durability.md and the evidence

Each case runs in parts, each on a new load, and a part ends up in ``--out`` when it is done: the same command
goes on where it was cut. A part's number is its seed. ``--write`` runs nothing. Exit code 1 if a case broke
what its durability class promises, or a control did not show its own: then the test proves nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import started

from ztune.crash.cuts import Cutting
from ztune.crash.plan import Moment
from ztune.crash.prepare import prepare
from ztune.crash.result import Cut, Result
from ztune.errors import ZtuneError
from ztune.runs.asked import layout_of
from ztune.study import DurabilityClass

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "durability.md"
EVIDENCE = HERE.parent / "src" / "ztune" / "advice" / "durability_evidence.toml"
BEGIN, END = "<!-- Written by bench/crash.py --write -->", "<!-- End of what bench/crash.py writes -->"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    workload: str
    layout: str
    params: dict[str, str]
    what: str
    control: bool = False


CASES = (
    Case(
        "fpw-on", "postgres-oltp", f"{HERE}/crash-postgres.toml", {}, "full_page_writes=on, recordsize 128K"
    ),
    Case(
        "fpw-off",
        "postgres-oltp",
        f"{HERE}/crash-postgres.toml:data 8K",
        {"full_page_writes": "false"},
        "full_page_writes=off, recordsize 8K",
    ),
    Case("sqlite-wal", "sqlite", f"{HERE}/crash-sqlite.toml", {}, "journal_mode=wal, synchronous=full"),
    Case(
        "sqlite-journal",
        "sqlite",
        f"{HERE}/crash-sqlite.toml",
        {"journal_mode": "truncate"},
        "journal_mode=truncate, synchronous=full",
    ),
    Case(
        "postgres-throughput",
        "postgres-oltp",
        f"{HERE}/crash-postgres.toml:logbias=throughput",
        {},
        "full_page_writes=on, recordsize 128K, logbias=throughput",
    ),
    Case(
        "sqlite-throughput",
        "sqlite",
        f"{HERE}/crash-sqlite.toml:logbias=throughput",
        {"journal_mode": "truncate"},
        "journal_mode=truncate, synchronous=full, logbias=throughput",
    ),
    Case(
        "sqlite-extra",
        "sqlite",
        f"{HERE}/crash-sqlite.toml",
        {"journal_mode": "delete", "synchronous": "extra"},
        "journal_mode=delete, synchronous=extra",
    ),
    Case("valkey-always", "valkey", "valkey", {"appendfsync": "always"}, "appendfsync=always"),
    Case(
        "valkey-everysec",
        "valkey",
        "valkey",
        {"appendfsync": "everysec"},
        "appendfsync=everysec",
        control=True,
    ),
    Case(
        "sqlite-delete",
        "sqlite",
        f"{HERE}/crash-sqlite.toml",
        {"journal_mode": "delete"},
        "journal_mode=delete, synchronous=full",
        control=True,
    ),
    Case(
        "postgres-unsynced",
        "postgres-oltp",
        f"{HERE}/crash-postgres.toml:data 8K, sync=disabled",
        {"full_page_writes": "false"},
        "full_page_writes=off, recordsize 8K, sync=disabled",
        control=True,
    ),
    Case(
        "postgres-wal-unsynced",
        "postgres-oltp",
        f"{HERE}/crash-postgres.toml:data 8K, WAL sync=disabled",
        {},
        "full_page_writes=on, recordsize 8K, sync=disabled on the WAL alone",
        control=True,
    ),
    Case(
        "sqlite-unsynced",
        "sqlite",
        f"{HERE}/crash-sqlite.toml:sync=disabled",
        {},
        "journal_mode=wal, synchronous=full, sync=disabled",
        control=True,
    ),
)


def load(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return case → its parts, as they were written."""
    if not path.exists():
        return {}
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(path: Path, parts: dict[str, list[dict[str, Any]]]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(parts, indent=1), encoding="utf-8")
    partial.rename(path)


def run(case: Case, parts: list[dict[str, Any]], args: argparse.Namespace) -> Result:
    """Run the next part."""
    done = sum(len(part["cuts"]) for part in parts)
    study, layout = layout_of(case.layout, None, None, None)
    count = min(args.part, args.cuts - done)

    def report(cut: Cut) -> None:
        print(f"{case.name} {done + cut.number}/{args.cuts}: {cut.sentence()}", file=sys.stderr, flush=True)

    return prepare(
        case.workload,
        study,
        layout,
        case.params,
        Cutting(count, len(parts) + 1, window_s=args.window),
        disks=args.disks,
        report=report,
    ).run()


def merged(parts: list[dict[str, Any]]) -> Result:
    """Return all parts of a case as one result."""
    first = parts[0]
    cuts = []
    for cut in (cut for part in parts for cut in part["cuts"]):
        fields: dict[str, Any] = {k: v for k, v in cut.items() if k != "class"}
        cuts.append(Cut(**{**fields, "problems": tuple(fields["problems"])}))
    for cut in cuts:
        cut.moment = Moment(cut.moment)
    known = {k: v for k, v in first.items() if k not in {"found", "broken", "figures", "cuts", "promised"}}
    return Result(**{**known, "promised": DurabilityClass(first["promised"]), "cuts": cuts})


def table(results: dict[str, Result]) -> list[str]:
    """Return the table for docs/durability.md."""
    lines = [
        (
            "| database | settings | promised | cuts | commits acknowledged | lost | damaged | "
            "log records replayed per cut: median, most | found |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        if case.name not in results:
            continue
        r = results[case.name]
        f = r.figures()
        bound = f["upper_bound_per_cut"]
        found = _cell(r) + (f": at most {bound:.1%} per cut" if bound is not None else "")
        control = " (control)" if case.control else ""
        lines.append(
            f"| {r.version} | {case.what}{control} | {r.promised} | {f['cuts']} | "
            f"{f['commits_acknowledged']:,} | {f['commits_lost']:,} | {f['cuts_with_corruption']} | "
            f"{f['replayed_median']:,.0f}, {f['replayed_most']:,} | {found} |"
        )
    return lines


def _cell(result: Result) -> str:
    if result.found is not DurabilityClass.CORRUPT:
        return result.finding()
    f = result.figures()
    return f"damaged after {f['cuts_with_corruption']} of {f['cuts']} cuts"


def evidence(results: dict[str, Result]) -> str:
    """Return the file that recommendations cite."""
    lines = [
        "# Crash tests that recommendations cite. Written by `python bench/crash.py --write`, never by hand."
    ]
    for case in CASES:
        if case.name not in results:
            continue
        r = results[case.name]
        f = r.figures()
        values: dict[str, Any] = {
            "name": case.name,
            "workload": case.workload,
            "database": r.version,
            "openzfs": r.openzfs,
            "what": case.what,
            "promised": str(r.promised),
            "found": str(r.found),
            "cuts": f["cuts"],
            "commits": f["commits_acknowledged"],
            "lost": f["commits_lost"],
            "cuts_with_loss": f["cuts_with_loss"],
            "cuts_with_corruption": f["cuts_with_corruption"],
            "most_lost": f["most_lost_at_once"],
            "oldest_s": round(f["oldest_loss_s"] or 0.0, 2),
        }
        lines += ["", "[[test]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def write(results: dict[str, Result]) -> None:
    """Put the results where they are cited."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    first = next(iter(results.values()))
    o = first.options
    kernel = ".".join(platform.release().split(".")[:2])
    head = (
        f"{first.openzfs}, {platform.system()} {kernel}, disks {o['disks']}, "
        f"{o['clients']} clients, a window of {o['window_s']:g} s, a new load after every {o['cuts']} cuts."
    )
    PAGE.write_text("\n".join([before + BEGIN, head, "", *table(results), END]) + after, encoding="utf-8")
    EVIDENCE.write_text(evidence(results), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"of {', '.join(c.name for c in CASES)}")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--part", type=int, default=50, help="cuts on the same files")
    parser.add_argument("--window", type=float, default=3.0)
    parser.add_argument("--disks", choices=["instant", "profile"], default="instant")
    parser.add_argument("--out", type=Path, action="append", help="default crash.json; --write takes several")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    unknown = set(args.case) - {c.name for c in CASES}
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    files: list[Path] = args.out or [Path("crash.json")]
    parts = {name: found for path in files for name, found in load(path).items() if found}
    if not args.write:
        for case in CASES:
            mine = parts.setdefault(case.name, [])
            while case.name in (args.case or [case.name]) and sum(len(p["cuts"]) for p in mine) < args.cuts:
                mine.append(run(case, mine, args).to_json())
                save(files[0], parts)
    results = {name: merged(found) for name, found in parts.items() if found}
    if not results:
        raise ZtuneError("there is no result to write; run without --write first")
    if args.write:
        write(results)
    print("\n".join(table(results)))
    blind = [c.name for c in CASES if c.control and c.name in results and not _showed(results[c.name])]
    for name in blind:
        print(f"{name} did not show what its layout must lose: this test proves nothing")
    return 1 if blind or any(r.broken for r in results.values()) else 0


def _showed(result: Result) -> bool:
    """Whether a control found what its durability class says."""
    return result.found is result.promised


if __name__ == "__main__":
    started.script(main)

"""Rows that compress as real ones do.

pgbench fills its accounts with blanks: a page of them shrinks to a tenth (measured: lz4 9.5:1 at 8 KiB, 15:1
at 128 KiB, against about 2:1 that people see on real tables), which would make every compressed layout look
far better than it is. Here a row's 84 characters are seven words out of 256 and a number of up to 16
hexadecimal digits, both drawn from hashes of the row's key and the seed: text repeats, identifiers don't.

Measured on a table of 2.5 million such rows, 200 blocks each (PostgreSQL 15, lz4 1.9, zstd 1.5, ratio
before rounding to sectors; `tests/databases/postgresql/test_postgres_oltp.py` holds them to these bounds):

============ ===== ========
record size  lz4   zstd-3
============ ===== ========
8 KiB        1.77  2.60
16 KiB       1.93  2.89
32 KiB       2.03  3.13
128 KiB      2.11  3.31
============ ===== ========
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztune.units import parse_size

# Plain words of three to eight letters, as names, streets and notes have them.
WORDS = tuple(
    """
    able about account across active after again agent amount answer area arrive august autumn balance
    bank basic beach before begin below berlin better between bill black blue board boston branch bridge
    bright bring brown budget build business button call camera cancel card carry center central chair
    change charge check chicago city claim class clear client close cloud coast coffee color company
    copper corner cost count country court cover credit cross current customer daily dallas date decide
    deep delay deliver desk detail direct district doctor door double draft drive early earth east edge
    effort eight email empty engine enter equal evening event every exact export factor family farm
    field figure file final find first floor follow forest form forward four frame freight friday friend
    front garden gate general glass gold good grand gray great green ground group grow hand harbor head
    heavy high hill hold home hotel hour house import index indoor invoice island item january join july
    june junction keep kind king kitchen known lake lamp land large last later lead leave left letter
    level light limit line list local london long loss lower lunch machine madrid mail main major maple
    march market matter media meet member metal middle mile milk mill mine minor mobile model monday
    money month morning motor mountain move museum name narrow near need network never night nine normal
    north notice november number object october offer office often oil old open orange orchard order
    other outside oxford owner page paid paint panel paper paris park part pass past path pay pending
    people
    """.split()  # noqa: SIM905 - a list of 256 quoted words would fill the page
)
PHRASES = tuple(
    " ".join(WORDS[(first + n * (2 * n + 37 * first + 11)) % 256] for n in range(3)) for first in range(256)
)
"""256 phrases of three words. Rows that are not padded repeat more than single words, or they would compress
less than real ones: four phrases and twelve hexadecimal digits give, in SQLite's pages, 1.6 with lz4 and 2.3
with zstd-3 at 8 KiB, 1.8 and 2.7 at 16 KiB, 2.1 and 3.5 at 128 KiB
(`tests/databases/sqlite/test_sqlite_job.py`).
"""
LEAST_COMPRESSED = 0.25
"""What lz4 leaves of values that are phrases alone, in records of 128 KiB."""
ROWS_PER_SCALE = 100_000
BYTES_PER_SCALE = 15_400_000
"""Table and index of one unit of scale: 13.4 MB of rows (61 to a page) and 2.2 MB of index, as measured at
scale 25.
"""


def row_sql(kind: str, seed: int, first: int, last: int) -> str:
    """Return the SELECT that makes the rows of ``pgbench_accounts`` from key ``first`` to ``last``.

    Args:
        kind: ``text`` (as above) or ``blank`` (as pgbench itself does it).
        seed: another seed gives other rows.
        first: lowest key.
        last: highest key.
    """
    keys = f"generate_series({first}, {last}) AS aid"
    bid = f"(aid - 1) / {ROWS_PER_SCALE} + 1"
    if kind == "blank":
        return f"SELECT aid, {bid}, 0, '' FROM {keys}"
    # An array of type name: its elements have one length, so that the n-th is found without walking the
    # array.
    words = "'{" + ",".join(WORDS) + "}'::name[]"
    text = " || ' ' || ".join(f"w[1 + ((h >> {8 * n}) & 255)::int]" for n in range(7))
    number = "to_hex(g) || to_hex((g # h) & 4294967295)"
    return (
        f"SELECT aid, {bid}, 0, {text} || ' ' || {number} FROM (SELECT aid, {words} AS w,"
        f" hashint8extended(aid, {2 * seed}) AS h, hashint8extended(aid, {2 * seed + 1}) AS g"
        f" FROM {keys}) AS hashes"
    )


def fresh_share(compressed: float) -> float:
    """Return the share of a value that has to be of its own, for lz4 to shrink values to ``compressed`` times
    their size in records of 128 KiB: within 0.06, as measured at eleven shares.
    """
    above = max(0.0, (compressed - LEAST_COMPRESSED) / (1 - LEAST_COMPRESSED))
    return above * (0.6 + 0.4 * above)


def values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``client_program.Values`` is told, from the parameters of a store of keys and values."""
    return {
        "size": parse_size(params["value_size"]),
        "fresh": fresh_share(float(params["compressible"])),
        "phrases": list(PHRASES),
        "seed": int(params["seed"]),
    }

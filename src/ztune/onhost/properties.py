"""The dataset properties a layout may set: their values, as ZFS checks them, and ZFS's defaults.

Source of values and defaults, unless an entry says otherwise: zfsprops(7) of OpenZFS 2.3.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ztune.onhost.words import suggest
from ztune.units import format_size, is_power_of_two, parse_size

MAX_RECORDSIZE = 16 << 20
MAX_SPECIAL_SMALL_BLOCKS = 1 << 20
LARGE_RECORD = 128 << 10
"""Above, a pool needs the large_blocks feature (zpool-features(7))."""
MAX_VOLBLOCKSIZE = 128 << 10  # 16M since OpenZFS 2.4


@dataclass(frozen=True)
class Property:
    """One dataset property.

    ``replayed``: the replay engine honours it, so screening can vary it; the others are only handed on to
    the commands. ``new_blocks_only``: a change leaves what is already written as it is. ``at_creation``: it
    is set when the dataset is made and never after. ``volumes``: a volume has it too; ``volume_only``: only
    a volume has it. ``since``: the OpenZFS version that brought it, and ``values_since`` the versions of
    values that came later (read from module/zcommon/zfs_prop.c of each release). ``before``: the value that
    versions before ``since`` act by, None for the default.
    """

    name: str
    default: str
    values: str
    parse: Callable[[str], str]
    doc: str
    replayed: bool = True
    new_blocks_only: bool = False
    source: str = "zfsprops(7)"
    at_creation: bool = False
    volumes: bool = False
    volume_only: bool = False
    since: str = "0.8"
    values_since: Mapping[str, str] = field(default_factory=dict)
    before: str | None = None

    def needless(self, value: str) -> bool:
        """Return whether a version without the property can do without this canonical value: it acts by it,
        or it is the default, which would only keep another from being inherited."""
        return value in (self.before, self.default)

    def needs(self, value: str) -> str:
        """Return the OpenZFS version that the property with this canonical value needs: "2.2"."""
        starts = [
            v for prefix, v in self.values_since.items() if value == prefix or value.startswith(prefix + "-")
        ]
        return max([self.since, *starts], key=version_key)

    def lacking(self, value: str, version: str) -> str:
        """Return the OpenZFS version that the property with this canonical value needs, where ``version`` is
        older and does not act by that value; else, or where ``version`` is not known, nothing."""
        needed = self.needs(value)
        old = version and version_key(version) < version_key(needed)
        return needed if old and not self.needless(value) else ""


def version_key(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare: "2.3.2-2~bpo12+1", "zfs-2.3.2" → (2, 3, 2)."""
    match = re.search(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", text)
    return tuple(int(n) for n in match[0].split(".")) if match else ()


def _choice(*words: str, **aliases: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = aliases.get(text, text)
        if value not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return value

    return parse


def _recordsize(text: str) -> str:
    size = parse_size(text)
    if not is_power_of_two(size) or not 512 <= size <= MAX_RECORDSIZE:
        raise ValueError("it is a power of two from 512 to 16M")
    return format_size(size)


def _special_small_blocks(text: str) -> str:
    size = parse_size(text)
    if size != 0 and (not is_power_of_two(size) or not 512 <= size <= MAX_SPECIAL_SMALL_BLOCKS):
        raise ValueError("it is 0 or a power of two from 512 to 1M")
    return format_size(size)


_COMPRESSION = "off, on, lz4, zstd, zstd-1 … zstd-19, zstd-fast-N, gzip, gzip-1 … gzip-9, zle or lzjb"
# zstd-fast levels: 1–10, then tens to 100, then 500 and 1000 (zfsprops(7), compression).
_ZSTD_FAST = {*range(1, 11), *range(20, 101, 10), 500, 1000}
# What the short forms mean today: `on` is lz4 on a pool with the lz4_compress feature, as all new ones have.
_SHORT = {"on": "lz4", "zstd": "zstd-3", "zstd-fast": "zstd-fast-1", "gzip": "gzip-6"}


def _compression(text: str) -> str:
    value = _SHORT.get(text, text)
    if value in {"off", "lz4", "zle", "lzjb"}:
        return value
    match = re.fullmatch(r"(zstd|zstd-fast|gzip)-([1-9]\d*)", value)
    if match:
        level = int(match[2])
        allowed = {"zstd": range(1, 20), "zstd-fast": _ZSTD_FAST, "gzip": range(1, 10)}[match[1]]
        if level in allowed:
            return value
        if match[1] == "zstd-fast":
            raise ValueError("zstd-fast levels are 1 … 10, 20, 30 … 100, 500 and 1000")
        raise ValueError(f"{match[1]} levels are 1 … {max(allowed)}")
    raise ValueError(f"it is one of {_COMPRESSION}")


def _volblocksize(text: str) -> str:
    size = parse_size(text)
    if not is_power_of_two(size) or not 512 <= size <= MAX_VOLBLOCKSIZE:
        raise ValueError("it is a power of two from 512 to 128K")
    return format_size(size)


_ON_OFF = _choice("on", "off")
_CIPHERS = tuple(f"aes-{bits}-{mode}" for mode in ("ccm", "gcm") for bits in (128, 192, 256))

PROPERTIES: dict[str, Property] = {
    p.name: p
    for p in (
        Property(
            "recordsize",
            "128K",
            "a power of two from 512 to 16M",
            _recordsize,
            "The largest block of a file. "
            "A smaller write into a block that is not in the ARC reads it first.",
            new_blocks_only=True,
            source="zfsprops(7); 16M needs zfs_max_recordsize at its 2.2+ default",
        ),
        Property(
            "compression",
            "lz4",
            _COMPRESSION,
            _compression,
            "How blocks are compressed. `on`, the default, is lz4; `zstd` is zstd-3; `gzip` is gzip-6.",
            new_blocks_only=True,
            source="zfsprops(7); `on` since OpenZFS 2.2 on new pools",
            volumes=True,
            values_since={"zstd": "2.0"},
        ),
        Property(
            "checksum",
            "on",
            "on, off, fletcher2, fletcher4, sha256, sha512, skein, edonr or blake3",
            _choice("on", "off", "fletcher2", "sha256", "sha512", "skein", "edonr", "blake3", fletcher4="on"),
            "How blocks are checked. `on` is fletcher4. "
            "`off` lets damage pass unseen and is never recommended.",
            new_blocks_only=True,
            volumes=True,
            values_since={"blake3": "2.2"},
        ),
        Property(
            "logbias",
            "latency",
            "latency or throughput",
            _choice("latency", "throughput"),
            "Whether synchronous writes go to the log (device), "
            "or straight to their place with a small log record.",
            volumes=True,
        ),
        Property(
            "sync",
            "standard",
            "standard, always or disabled",
            _choice("standard", "always", "disabled"),
            "Whether fsync waits for the disk. `disabled` loses acknowledged commits at a power cut.",
            volumes=True,
        ),
        Property(
            "primarycache",
            "all",
            "all, none or metadata",
            _choice("all", "none", "metadata"),
            "What of this dataset the ARC keeps.",
            volumes=True,
        ),
        Property(
            "secondarycache",
            "all",
            "all, none or metadata",
            _choice("all", "none", "metadata"),
            "What of this dataset a cache device (L2ARC) keeps.",
            volumes=True,
        ),
        Property(
            "redundant_metadata",
            "all",
            "all, most, some or none",
            _choice("all", "most", "some", "none"),
            "How much metadata is stored twice.",
            new_blocks_only=True,
            volumes=True,
            values_since={"some": "2.1.7", "none": "2.1.7"},
        ),
        Property(
            "special_small_blocks",
            "0",
            "0 or a power of two from 512 to 1M",
            _special_small_blocks,
            "Blocks up to this size go to the special vdev. At or above the recordsize, every block does.",
            new_blocks_only=True,
        ),
        Property(
            "copies",
            "1",
            "1, 2 or 3",
            _choice("1", "2", "3"),
            "How many copies of each block are kept, beside the redundancy of the vdevs.",
            new_blocks_only=True,
            volumes=True,
        ),
        Property(
            "atime",
            "off",
            "on or off",
            _ON_OFF,
            "Whether reading a file updates its access time. OpenZFS's own default is on; a trial and the "
            "commands have off where the layout does not say, as a replay has it.",
            replayed=False,
        ),
        Property(
            "relatime",
            "on",
            "on or off",
            _ON_OFF,
            "With atime=on: update the access time at the first read after a change, and once a day, only.",
            replayed=False,
        ),
        Property(
            "xattr",
            "sa",
            "on, off, dir or sa",
            _choice("sa", "dir", "off", on="sa"),
            "Where extended attributes are kept.",
            replayed=False,
            source="zfsprops(7); sa is the default since 2.3",
        ),
        Property(
            "acltype",
            "off",
            "off, nfsv4 or posix",
            _choice("off", "nfsv4", "posix", posixacl="posix", noacl="off"),
            "Which access control lists files may carry.",
            replayed=False,
            values_since={"posix": "2.0", "nfsv4": "2.0"},
        ),
        Property(
            "dnodesize",
            "legacy",
            "legacy, auto, 1k, 2k, 4k, 8k or 16k",
            _choice("legacy", "auto", "1k", "2k", "4k", "8k", "16k"),
            "The size of a file's dnode.",
            replayed=False,
        ),
        Property(
            "direct",
            "standard",
            "disabled, standard or always",
            _choice("disabled", "standard", "always"),
            "What O_DIRECT does, from OpenZFS 2.3 on: past the ARC, nothing, or as if all asked for it.",
            since="2.3",
            before="disabled",
        ),
        Property(
            "prefetch",
            "all",
            "all, none or metadata",
            _choice("all", "none", "metadata"),
            "What speculative prefetch may read ahead (OpenZFS 2.2.4 and later).",
            replayed=False,
            volumes=True,
            since="2.2.4",
        ),
        Property(
            "snapdir",
            "hidden",
            "hidden, visible or disabled",
            _choice("hidden", "visible", "disabled"),
            "Whether the .zfs directory shows.",
            replayed=False,
            values_since={"disabled": "2.3"},
        ),
        Property(
            "encryption",
            "off",
            "off, on, or aes-128-ccm … aes-256-gcm",
            _choice("off", *_CIPHERS, on="aes-256-gcm"),
            "How blocks are encrypted by ZFS; set when the dataset is made. `on` is aes-256-gcm.",
            replayed=False,
            at_creation=True,
            volumes=True,
            source="zfsprops(7); `on` is aes-256-gcm since 0.8.4",
        ),
        Property(
            "volblocksize",
            "16K",
            "a power of two from 512 to 128K",
            _volblocksize,
            "The block of a volume; set when the volume is made. A file system has a recordsize instead.",
            replayed=False,
            at_creation=True,
            volumes=True,
            volume_only=True,
            source="zfsprops(7); 16K is the default since 2.2, 8K before",
        ),
    )
}

FEATURES = {
    **dict.fromkeys(("large_blocks", "large_dnode", "lz4_compress", "sha512", "skein", "edonr"), "0.8"),
    "zstd_compress": "2.0",
    "blake3": "2.2",
}
"""Pool features that a property's value needs (zpool-features(7)), and the release that brought them."""


def feature_of(name: str, value: str) -> str:
    """Return the feature that a pool needs for a property's canonical value, empty where it needs none."""
    if name == "recordsize" and parse_size(value) > LARGE_RECORD:
        return "large_blocks"
    if name == "compression":
        return "zstd_compress" if value.startswith("zstd") else "lz4_compress" if value == "lz4" else ""
    if name == "checksum" and value in FEATURES:
        return value
    return "large_dnode" if name == "dnodesize" and value != "legacy" else ""


def lacks_feature(name: str, value: str, need: str, pool: str) -> str:
    """Return the sentence for a property's value that takes a feature which ``pool`` has disabled."""
    return (
        f"{name}={value} needs the feature {need}, which pool {pool} has disabled; "
        f"`zpool set feature@{need}=enabled {shlex.quote(pool)}` turns it on for good, and older "
        "software can no longer import the pool then"
    )


ALIASES = {"recsize": "recordsize", "compress": "compression", "rdonly": "readonly", "dnsize": "dnodesize"}
REPLAYED = tuple(name for name, p in PROPERTIES.items() if p.replayed)
STATED = tuple(name for name in REPLAYED if PROPERTIES[name].since == Property.since)
"""What every dataset of a layout says, be it ZFS's default: each version of OpenZFS has it."""
MOUNTED = (*REPLAYED, "atime", "relatime")
"""What a mount has of a dataset's properties: a trace does not say when access times changed."""


def parse_property(name: str, value: object) -> tuple[str, str]:
    """Return the full name and canonical value of a property as ZFS would take it.

    Canonical: sizes as "8K"; ``compression=on`` as ``lz4``, ``zstd`` as ``zstd-3``; ``checksum=fletcher4`` as
    ``on``. Raises ValueError with a sentence for an unknown property or value.
    """
    full = ALIASES.get(name, name)
    known = PROPERTIES.get(full)
    if known is None:
        raise ValueError(f'"{name}" is not a property that a layout can set.{suggest(name, PROPERTIES)}')
    if isinstance(value, bool):
        raise ValueError(f'{full} is {str(value).lower()}; write "on" or "off" in quotes')
    if not isinstance(value, str | int):
        raise ValueError(f"{full} is {value!r}; {known.values} is expected")
    try:
        return full, _canonical(full, str(value).strip())
    except ValueError as error:
        raise ValueError(f'{full} is "{value}"; {error}') from None


@functools.lru_cache(maxsize=4096)
def _canonical(name: str, text: str) -> str:
    """Return a property's value; a search makes thousands of layouts of the same few."""
    return PROPERTIES[name].parse(text)

#!/usr/bin/env python3
"""Stands in for zfs and zpool: datasets in a JSON file, with inheritance, received values and refusals.

$FAKE_ZFS names the file: {"version", "datasets": {name: {"type", "guid", "local": {…}, "received": {…}}},
"pools": {name: {"properties", "status", "vdevs": {name: {property: value}}}}}. $FAKE_FAIL: "set recordsize
tank/pg" makes that call fail, once for each line; with "then kill" at its end it ends its parent by SIGTERM,
with "then lie" it does nothing and succeeds.
"""

# It is started thousands of times, and pathlib takes as long to load as all the rest.
# ruff: noqa: PTH119, PTH123

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULTS = {
    "recordsize": "131072", "compression": "on", "checksum": "on", "logbias": "latency", "sync": "standard",
    "primarycache": "all", "secondarycache": "all", "redundant_metadata": "all", "special_small_blocks": "0",
    "copies": "1", "atime": "on", "relatime": "on", "xattr": "sa", "acltype": "off", "dnodesize": "legacy",
    "direct": "standard", "prefetch": "all", "snapdir": "hidden", "dedup": "off", "readonly": "off",
}  # fmt: skip
VOLUME_ONLY = {"volblocksize": "16384", "volsize": "8589934592"}
NOT_OF_VOLUMES = {"recordsize", "special_small_blocks", "atime", "relatime", "xattr", "acltype", "dnodesize",
                  "direct", "snapdir", "mountpoint", "mounted"}  # fmt: skip
SINCE = {"direct": (2, 3), "prefetch": (2, 2, 4)}
NATIVE = {"type", "guid", "used", "referenced", "available", "origin", "encryption", "encryptionroot",
          "keyformat", "keylocation"}  # fmt: skip
SIZES = {"recordsize", "special_small_blocks"}


def state_file() -> str:
    return os.environ["FAKE_ZFS"]


def read() -> dict[str, Any]:
    with open(state_file()) as file:
        return dict(json.load(file))


def write(state: dict[str, Any]) -> None:
    with open(state_file(), "w") as file:
        json.dump(state, file)


def die(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def lookup(state: dict[str, Any], name: str, prop: str) -> tuple[str, str]:
    """Return (value, source) as zfs get shows them."""
    dataset = state["datasets"][name]
    volume = dataset["type"] == "volume"
    if prop in NATIVE:
        known = {"type": dataset["type"], "guid": dataset["guid"], "origin": "-", "encryption": "off"}
        return str({**known, **dataset.get("facts", {})}.get(prop, "-")), "-"
    if prop == "mountpoint" and not volume:
        at, rest = name, ""
        while True:
            if "mountpoint" in state["datasets"].get(at, {}).get("local", {}):
                base = state["datasets"][at]["local"]["mountpoint"]
                return base + rest, "local" if not rest else f"inherited from {at}"
            at, _, leaf = at.rpartition("/")
            rest = "/" + leaf + rest
            if not at:
                return "/" + name, "default"
    if prop == "mounted":
        return ("-" if volume else dataset.get("facts", {}).get("mounted", "yes")), "-"
    if prop in VOLUME_ONLY:
        return (dataset.get("facts", {}).get(prop, VOLUME_ONLY[prop]), "-") if volume else ("-", "-")
    if volume and prop in NOT_OF_VOLUMES:
        return "-", "-"
    if prop in dataset.get("temporary", {}):
        return dataset["temporary"][prop], "temporary"
    at = name
    while at:
        here = state["datasets"].get(at, {})
        for kind in ("local", "received"):
            if prop in here.get(kind, {}):
                return here[kind][prop], kind if at == name else f"inherited from {at}"
        at = at.rpartition("/")[0]
    return DEFAULTS[prop], "default"


def size(text: str) -> str:
    units = {"K": 10, "M": 20, "G": 30}
    return str(int(text[:-1]) << units[text[-1]]) if text[-1] in units else text


def wishes(call: str, state: dict[str, Any]) -> None:
    """Fail, or end the caller, where $FAKE_FAIL asks for it; each line counts once."""
    used = state.setdefault("used", [])
    for line in os.environ.get("FAKE_FAIL", "").splitlines():
        wanted, _, how = line.partition(" then ")
        if (call == wanted or call.startswith(wanted + " ")) and line not in used:
            used.append(line)
            write(state)
            if how == "kill":
                import signal

                os.kill(os.getppid(), signal.SIGTERM)
                signal.pause()
            if how == "lie":
                sys.exit(0)
            die(f"cannot {call}: permission denied")


def version_of(state: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in state["version"].split("-")[0].split("."))


def main(argv: list[str]) -> None:
    state = read()
    program, (verb, *words) = os.path.basename(argv[0]), argv[1:]
    with open(state_file().removesuffix(".json") + ".log", "a") as log:
        print(program, *argv[1:], file=log)
    if (program, verb) == ("zfs", "version"):
        print(f"zfs-{state['version']}\nzfs-kmod-{state['version']}")
    elif (program, verb) == ("zfs", "get"):
        columns = words[words.index("-o") + 1].split(",")
        props, name = words[-2].split(","), words[-1]
        # As libzfs does: the list of properties is read before any dataset is opened.
        for prop in props:
            if version_of(state) < SINCE.get(prop, (0,)):
                die(f"bad property list: invalid property '{prop}'", 2)
        if name not in state["datasets"]:
            die(f"cannot open '{name}': dataset does not exist")
        if props == ["all"]:
            props = [p for p in DEFAULTS if p not in SINCE] + ["type", "guid"]
        names = [name]
        if "-r" in words:
            names += sorted(n for n in state["datasets"] if n.startswith(name + "/"))
        for each in names:
            for prop in props:
                value, source = lookup(state, each, prop)
                row = {"name": each, "property": prop, "value": value, "source": source}
                print("\t".join(row[c] for c in columns))
    elif (program, verb, words[-1]) == ("zfs", "list", "name,guid"):
        for name, dataset in state["datasets"].items():
            print(f"{name}\t{dataset['guid']}")
    elif (program, verb) == ("zfs", "list"):
        if words[-1] not in state["datasets"]:
            die(f"cannot open '{words[-1]}': dataset does not exist")
        print(words[-1])
    elif (program, verb, words[0]) == ("zpool", "get", "version"):
        print("NAME  PROPERTY  VALUE    SOURCE\ntank  version   -        default")
    elif (program, verb) == ("zfs", "set"):
        *assignments, name = words
        for assignment in assignments:
            prop, _, value = assignment.partition("=")
            wishes(f"set {prop} {name}", state)
            if version_of(state) < SINCE.get(prop, (0,)):
                die(f"cannot set property for '{name}': invalid property '{prop}'")
            if name not in state["datasets"]:
                die(f"cannot open '{name}': dataset does not exist")
            state["datasets"][name].setdefault("local", {})[prop] = size(value) if prop in SIZES else value
        write(state)
    elif (program, verb) == ("zfs", "inherit"):
        received = words[0] == "-S"
        prop, name = words[-2:]
        wishes(f"inherit {prop} {name}", state)
        dataset = state["datasets"][name]
        dataset.get("local", {}).pop(prop, None)
        if not received:
            dataset.get("received", {}).pop(prop, None)
        write(state)
    elif (program, verb, words[-1]) == ("zpool", "get", "all-vdevs"):
        for name, values in state["pools"][words[-2]].get("vdevs", {}).items():
            for prop in words[-3].split(","):
                print(f"{name}\t{prop}\t{values.get(prop, '-')}")
    elif (program, verb) == ("zpool", "get"):
        for prop in words[-2].split(","):
            print(f"{prop}\t{state['pools'][words[-1]]['properties'].get(prop, 'enabled')}")
    elif (program, verb) == ("zpool", "status"):
        print(state["pools"][words[-1]]["status"])
    else:
        die(f"the stand-in does not know {argv}", 2)


if __name__ == "__main__":
    main(sys.argv)

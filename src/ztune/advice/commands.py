"""From a recommendation to a POSIX shell script of zfs commands: dry-run by default, never destroys."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from ztune.advice.model import PropertyAdvice, Recommendation, RoleAdvice
from ztune.analysis import units
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.study import Dataset, DurabilityClass, Layout, Pool
from ztune.study.durability import judge
from ztune.study.layout import parse_layout
from ztune.units import listed

_WIDTH = 98
# Spelled out although they are ZFS's defaults, since a parent dataset may have handed down something else.
_ALWAYS = (
    "recordsize",
    "compression",
    "logbias",
    "sync",
    "primarycache",
    "checksum",
    "redundant_metadata",
    "copies",
)

# Values that protect more, best first. A layout that leaves such a property at ZFS's default says nothing
# against a stronger value that someone set on purpose.
_PROTECTION = {
    "copies": ("3", "2", "1"),
    "redundant_metadata": ("all", "most", "some", "none"),
    "checksum": ("blake3", "edonr", "skein", "sha512", "sha256", "on", "fletcher2", "off"),
    "sync": ("always", "standard", "disabled"),
}

_HEAD = r"""set -eu

usage() {
	cat <<'EOF'
usage: sh layout.sh [--yes]@ACCEPT@ @USAGE@

@ROOTS@Without --yes nothing is changed: each command is printed. With --yes each is printed and run.
@STOPS@ never destroys anything.
EOF
}

yes=0@NONE@
while [ "$#" -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
@CASE@	-h | --help)
		usage
		exit 0
		;;
	-*)
		usage >&2
		exit 2
		;;
	*) break ;;
	esac
	shift
done
if [ "$#" -ne @COUNT@ ]; then
	usage >&2
	exit 2
fi

fail() {
	printf 'layout: %s\n' "$1" >&2
	exit 1
}
"""
# Only of a layout that is weaker than a default ZFS.
_CASE = r"""	--accept-durability)
		accepted=${2:-}
		[ "$#" -lt 2 ] || shift
		;;
"""
_ACCEPT = r"""
if [ "$accepted" != @CLASS@ ]; then
	weak=@WEAK@
	if [ "$yes" -eq 1 ]; then
		fail "nothing was changed: $weak; if that is what you want, add --accept-durability @CLASS@"
	fi
	printf '# %s: --yes takes --accept-durability @CLASS@ as well\n' "$weak"
fi
"""
_ROOTS = r"""
# A pool, or a dataset below one, without a slash at either end.
check_root() {
	case $1 in
	'' | [!A-Za-z]* | */ | *//* | *[!A-Za-z0-9_.:/-]*) fail "\"$1\" is not a pool or dataset name" ;;
	esac
}
"""
_RUN = r"""
# Print a command so that it can be pasted; run it only with --yes.
run() {
	line=
	for word in "$@"; do
		case $word in
		'' | *[!A-Za-z0-9_.:/=@%+,-]*) word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'" ;;
		esac
		line="${line:+$line }$word"
	done
	printf '%s\n' "$line"
	if [ "$yes" -eq 1 ]; then
		"$@"
	fi
}
"""
_SAME = r"""
# Stop unless a dataset is the one that was compared: the name may be another one's by now.
same() {
	[ "$yes" -eq 1 ] || return 0
	now=$(zfs get -H -o value guid "$1" 2>/dev/null) || now=none
	[ "$now" = "$2" ] ||
		fail "nothing was changed: $1 is not the dataset that was compared (its guid is $now, not $2)"
}
"""
_RUN_SET = r"""
# Set properties of a dataset, the last word: but for those that protect more there than ZFS's default, which
# are left as they are.
run_set() {
	for dataset in "$@"; do :; done
	for word in "$@"; do
		shift
		case $word in
		*=*) now=$(zfs get -H -o value "${word%%=*}" "$dataset" 2>/dev/null) || now= ;;
		*) now= ;;
		esac
		case $word:$now in
		@STRONGER@)
			printf '# %s of %s stays %s, which protects more\n' "${word%%=*}" "$dataset" "$now"
			;;
		*) set -- "$@" "$word" ;;
		esac
	done
	run zfs set "$@"
}
"""
_CREATE = r"""
# A volume's device is made by udev, some time after the volume.
wait_for() {
	[ "$yes" -eq 1 ] || return 0
	tries=0
	until [ -e "$1" ]; do
		tries=$((tries + 1))
		[ "$tries" -le 30 ] || fail "$1 did not appear in 30 s"
		sleep 1
	done
}

exists() {
	zfs list -H -o name "$1" >/dev/null 2>&1
}
"""
_LAST = r"""
if [ "$yes" -eq 0 ]; then
	echo '# nothing was changed; add --yes to run these commands' >&2
fi
"""


def check_answer(recommendation: Recommendation) -> None:
    """Raise InputError where the layout is no answer for the database that was recorded."""
    if why := recommendation.no_answer:
        raise InputError(
            f"run {recommendation.subject.run} has nothing to set: most of what was recorded is in no "
            f"replay. {why.removesuffix('.')}"
        )


def script(recommendation: Recommendation) -> str:
    """Return a POSIX sh script that creates the recommended datasets below roots that its caller names.

    One root for each pool of the layout. It changes nothing without --yes, and where the layout is of a
    weaker class than `nothing-acknowledged` not without --accept-durability either. Nothing in it comes
    unquoted from the study: names are quoted where they are arguments, and stripped of control characters
    where they are comments. Raises InputError as ``check_answer`` does, and where a pool is not ZFS.
    """
    check_answer(recommendation)
    layout = parse_layout(recommendation.layout)
    pools = layout.used_pools()
    for pool in pools:
        if pool.filesystem != "zfs":
            raise InputError(
                f'layout "{recommendation.layout_name}" has {pool.filesystem} in place of pool {pool.name}: '
                f"there are no ZFS commands for it"
            )
    variables = {pool.name: "root" if len(pools) == 1 else f"root{i}" for i, pool in enumerate(pools, 1)}
    names = relative_names(layout)
    out = ["#!/bin/sh"]
    out += intro(recommendation)
    out.append("")
    words = {p.name: "ROOT" if len(pools) == 1 else f"ROOT{i}" for i, p in enumerate(pools, 1)}
    meanings = [f"{words[p.name]}: the pool, or a dataset on it, for {_roles_on(layout, p)}\n" for p in pools]
    stops = "It stops before the first change if a dataset that it would create exists, and it"
    klass = judge(layout).proven
    head = _head(list(words.values()), "".join(meanings), stops, klass)
    out += [head + _weak(recommendation, klass) + _ROOTS + _RUN + _CREATE]
    for i, pool in enumerate(pools, 1):
        out += [f"{variables[pool.name]}=${i}", f'check_root "${variables[pool.name]}"']
    if len(pools) > 1:
        for a, b in zip(list(variables.values()), list(variables.values())[1:], strict=False):
            out.append(
                f'[ "${{{a}%%/*}}" != "${{{b}%%/*}}" ] || fail "the roots are to be on different pools"'
            )
    first = next(iter(variables.values()))
    out += asked_of_host((properties(d, layout) for d in layout.datasets), f'"${first}"')
    ordered = sorted(layout.datasets, key=lambda d: names[d.name].count("/"))
    targets = {d.name: f"${{{variables[d.pool]}}}/{names[d.name]}" for d in ordered}
    parents = _parents([targets[d.name] for d in ordered])
    out += ["", 'if [ "$yes" -eq 1 ]; then']
    for variable in variables.values():
        out.append(f'\texists "${variable}" || fail "there is no dataset or pool \\"${variable}\\""')
    out.append(f"\tfor target in {' '.join(_quote(targets[d.name]) for d in ordered)}; do")
    out.append('\t\tif exists "$target"; then')
    out.append('\t\t\tfail "$target exists already; nothing was changed. Choose another root"')
    out += ["\t\tfi", "\tdone", "fi"]
    for parent in parents:
        out += ["", *comment("Only a parent; it holds no files.")]
        out.append(f'if [ "$yes" -eq 0 ] || ! exists {_quote(parent)}; then')
        out += [f"\trun zfs create -o canmount=off {_quote(parent)}", "fi"]
    for dataset in ordered:
        advice = next(r for r in recommendation.roles if r.dataset == dataset.name)
        out += ["", *_dataset_comments(dataset, advice)]
        out.append("run zfs create \\")
        if dataset.volume is not None:
            out.append(f"\t-s -V {dataset.volume} \\")
        out += [f"\t{shell_word(k, v, '-o ')} \\" for k, v in properties(dataset, layout).items()]
        out.append(f"\t{_quote(targets[dataset.name])}")
        if dataset.volume is not None:
            device = f'"/dev/zvol/{targets[dataset.name]}"'
            out += [f"wait_for {device}", f"run mkfs.{dataset.filesystem} {device}"]
    out += ["", *_closing(recommendation, layout, ordered, names)]
    return "\n".join([*out, _LAST])


def setting_script(recommendation: Recommendation, lines: Sequence[str], *, unseen: bool) -> str:
    """Return a POSIX sh script around ``lines``, which call ``same`` and ``run``, or with ``unseen``
    ``run_set``; dry-run by default like ``script``."""
    functions = _RUN
    if not unseen:
        functions += _SAME
    else:
        defaults = {name: PROPERTIES[name].default for name in _PROTECTION}
        cases = [f"{name}={value}:{now}" for name, value in defaults.items() for now in stronger(name, value)]
        functions += _RUN_SET.replace("@STRONGER@", " | ".join(cases))
    return "\n".join(
        ["#!/bin/sh", *intro(recommendation), "", _head([], "", "It") + functions.rstrip("\n"), *lines, _LAST]
    )


def _head(
    roots: Sequence[str], meanings: str, stops: str, klass: DurabilityClass = DurabilityClass.NOTHING
) -> str:
    """Return how a script begins: its usage, its arguments, and how it fails."""
    weaker = klass is not DurabilityClass.NOTHING
    filled = {"USAGE": " ".join(roots), "ROOTS": meanings, "STOPS": stops, "COUNT": str(len(roots))}
    filled |= {
        "ACCEPT": f" [--accept-durability {klass}]" if weaker else "",
        "NONE": "\naccepted=" if weaker else "",
        "CASE": _CASE if weaker else "",
    }
    return re.sub("@([A-Z]+)@", lambda found: filled[found[1]], _HEAD)


def _weak(recommendation: Recommendation, klass: DurabilityClass) -> str:
    """Return the lines that stop a script of a weaker layout, or say what it would lose."""
    if klass is DurabilityClass.NOTHING:
        return ""
    reasons = recommendation.durability.reasons
    why = reasons[0].rstrip(".") if reasons else f"the layout is of durability class {klass}"
    return _ACCEPT.replace("@CLASS@", str(klass)).replace("@WEAK@", shlex.quote(why))


def properties(dataset: Dataset, layout: Layout) -> dict[str, str]:
    """Return the properties to set when ``dataset`` is created, in the order of the commands.

    All that could be inherited from a parent with another value are spelled out, atime as trials had it too.
    """
    pool = layout.pool(dataset.pool)
    volume = dataset.volume is not None
    out = {name: dataset.properties[name] for name in _ALWAYS if PROPERTIES[name].volumes or not volume}
    if pool.vdev_text("cache") != "none" or dataset.properties["secondarycache"] != "all":
        out["secondarycache"] = dataset.properties["secondarycache"]
    if pool.vdev_text("special") != "none" and not volume:
        out["special_small_blocks"] = dataset.properties["special_small_blocks"]
    out.update(
        {
            k: v for k, v in dataset.properties.items()
            if k not in out and k not in _OPTIONAL and (PROPERTIES[k].volumes or not volume)
        }
    )  # fmt: skip
    if not volume:
        out.setdefault("atime", PROPERTIES["atime"].default)
    if "encryption" in out:
        out.setdefault("keyformat", "passphrase")
    return out


def settable(dataset: Dataset, layout: Layout) -> dict[str, str]:
    """Return what of ``properties`` can be set on a dataset that exists already."""
    return {
        k: v
        for k, v in properties(dataset, layout).items()
        if k in PROPERTIES and not PROPERTIES[k].at_creation
    }


def may_lack(name: str, value: str) -> bool:
    """Return whether a script leaves ``name=value`` out where OpenZFS lacks the property: only of one whose
    default is not what versions without it do."""
    known = PROPERTIES.get(name)
    return known is not None and known.before is not None and known.needless(value)


def without(name: str) -> str:
    """Return the sentence on what an OpenZFS without the property ``name`` does."""
    known = PROPERTIES[name]
    return f"OpenZFS before {known.since} has no property {name}, and acts as {name}={known.before} does"


def lackable(settings: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names of the properties in ``settings`` that an OpenZFS ``may_lack``."""
    return sorted({k for each in settings for k, v in each.items() if may_lack(k, v)})


def asked_of_host(settings: Iterable[Mapping[str, str]], target: str) -> list[str]:
    """Return the lines of a script that ask the host's OpenZFS for the properties that it ``may_lack``.

    ``target``: a dataset, quoted for a shell. Where it is missing, all properties are taken to be there.
    """
    out: list[str] = []
    for name in lackable(settings):
        out += ["", *comment(f"{without(name)}: there it is left out.")]
        out += [f"has_{name}=1", f"case $(LC_ALL=C zfs get -H -o value {name} {target} 2>&1) in"]
        out += [f'*"invalid property"*) has_{name}= ;;', "esac"]
    return out


def shell_word(name: str, value: str, before: str = "") -> str:
    """Return ``before`` and ``name=value``, quoted for a shell: nothing if the host has no such property, by
    what ``asked_of_host`` found."""
    text = before + shlex.quote(f"{name}={value}")
    return f"${{has_{name}:+{text}}}" if may_lack(name, value) else text


def stronger(name: str, value: str) -> tuple[str, ...]:
    """Return the values that protect more than ``value``, ZFS's default: no layout speaks against those.

    Nothing where ``value`` is not the default, which the layout then has on purpose.
    """
    order = _PROTECTION.get(name, ())
    return order[: order.index(value)] if value in order and value == PROPERTIES[name].default else ()


def weakens(name: str, value: str, now: str) -> bool:
    """Return whether going from ``now`` to ``value`` changes what a power cut or damage may lose."""
    order = _PROTECTION[name] if name in {"sync", "checksum"} else ()
    return value in order and now in order and order.index(value) > order.index(now)


def settable_unseen(dataset: Dataset, layout: Layout) -> dict[str, str]:
    """Return what of ``settable`` is set on a dataset of which nothing is known: not ``copies`` at its
    default, which is the least. All it could do is take away what somebody set on purpose."""
    out = settable(dataset, layout)
    if out.get("copies") == PROPERTIES["copies"].default:
        del out["copies"]
    return out


UNSEEN = (
    "What is there now was not looked at: leave out sync=standard where sync=always, and checksum=on where a "
    "stronger checksum was set on purpose."
)
"""Said where ``settable_unseen`` is set."""

LOOKED_AT_LATER = (
    "What is there now was not looked at here, and is before it is set: sync=standard is left out where "
    "sync=always, and checksum=on where a stronger checksum was set on purpose."
)
"""Said of scripts and tasks that leave out what would weaken."""

_OPTIONAL = ("secondarycache", "special_small_blocks")


def create_commands(recommendation: Recommendation) -> list[list[str]]:
    """Return the bare ``zfs create`` commands as argument lists, with the layout's own pool names."""
    layout = parse_layout(recommendation.layout)
    names = relative_names(layout)
    out = []
    for dataset in sorted(layout.datasets, key=lambda d: names[d.name].count("/")):
        options = [w for k, v in properties(dataset, layout).items() for w in ("-o", f"{k}={v}")]
        if dataset.volume is not None:
            options = ["-s", "-V", str(dataset.volume), *options]
        out.append(["zfs", "create", *options, f"{dataset.pool}/{names[dataset.name]}"])
    return out


def relative_names(layout: Layout) -> dict[str, str]:
    """Return each dataset's name below its root: without the pool and without what all datasets on it share.

    A dataset that is its pool's own root is called after its first role.
    """
    out: dict[str, str] = {}
    for pool in layout.used_pools():
        here = [d for d in layout.datasets if d.pool == pool.name]
        parts = {d.name: d.name.split("/")[1:] for d in here}
        while all(len(p) > 1 for p in parts.values()) and len({p[0] for p in parts.values()}) == 1:
            parts = {name: p[1:] for name, p in parts.items()}
        taken = {"/".join(p) for p in parts.values() if p}
        for dataset in here:
            name = "/".join(parts[dataset.name]) or dataset.key
            while not parts[dataset.name] and name in taken:
                name += "-root"
            out[dataset.name] = name
    return out


def _parents(targets: Sequence[str]) -> list[str]:
    """Return the datasets between a root and a target that nobody else creates, outermost first."""
    out: list[str] = []
    for target in targets:
        root, *rest = target.split("/")
        for i in range(1, len(rest)):
            parent = "/".join([root, *rest[:i]])
            if parent not in targets and parent not in out:
                out.append(parent)
    return sorted(out, key=lambda t: t.count("/"))


def _quote(target: str) -> str:
    return f'"{target}"'  # ${rootN} and dataset names, which have no character that is special between quotes


def _roles_on(layout: Layout, pool: Pool) -> str:
    roles = [role for d in layout.datasets if d.pool == pool.name for role in d.roles]
    return listed(roles)


def _clean(text: str) -> str:
    """Return ``text`` on one line without control characters, so that it can't leave a comment."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)).strip()


def comment(text: str, indent: str = "") -> list[str]:
    """Return ``text`` as lines of a shell (or YAML) comment; nothing in it can end the comment."""
    lines = textwrap.wrap(_clean(text), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return [f"# {indent}{line}" for line in lines]


def intro(r: Recommendation) -> list[str]:
    """Return the comment at the head of a script: which layout, on which evidence, how sure."""
    about = r.subject
    return [
        *comment(
            f"ZFS layout for {about.workload or about.study}, recommended by ztune from run {about.run}."
        ),
        *comment(f"Layout: {r.layout_name}. {r.verdict}"),
        *comment(f"Evidence: {r.evidence()}."),
        *comment(f"Confidence: {r.confidence.sentence}"),
        *comment(f"Durability: {r.durability.sentence} {' '.join(r.crash_tests[r.durability.klass])}"),
    ]


def _dataset_comments(dataset: Dataset, advice: RoleAdvice) -> list[str]:
    out = comment(f"{', '.join(dataset.roles)}:")
    for item in advice.properties:
        if not item.is_default or item.change.pairs:
            out += comment(f"{item.name}={item.value}: {_why(item)}", "  ")
    if "atime" not in dataset.properties:
        why = "no database needs access times, and a read that sets one waits as a write does."
        out += comment(f"atime=off: {why}", "  ")
    return out


def _why(item: PropertyAdvice) -> str:
    return " ".join(text for text in (item.reason, item.change.sentence) if text)


def _closing(
    r: Recommendation, layout: Layout, ordered: Sequence[Dataset], names: dict[str, str]
) -> list[str]:
    out: list[str] = []
    out += comment(
        "What is left to you, since ztune doesn't know your disks (replace the words in capitals):"
    )
    for pool in layout.used_pools():
        out += [f"#   {line}" for line in _pool_lines(pool, r, layout)]
    for name, value in sorted(layout.tunables.items()):
        if value != TUNABLES[name].default:
            out += comment(f"{name}={value}: {TUNABLES[name].doc} Linux, until the next boot:", "  ")
            out.append(f"#     echo {value} > /sys/module/zfs/parameters/{name}")
    out += _arc_lines(r, layout)
    if layout.database:
        settings = ", ".join(f"{name} = {value}" for name, value in sorted(layout.database.items()))
        out += comment(f"In the database: {settings}.", "  ")
    out.append("#")
    out += comment(
        "For datasets that exist already. This changes new blocks only; "
        f"a file of more than one block keeps its record size until it is copied. {UNSEEN}"
    )
    for dataset in ordered:
        settings = " ".join(shlex.quote(f"{k}={v}") for k, v in settable_unseen(dataset, layout).items())
        out.append(f"#   zfs set {settings} ROOT/{names[dataset.name]}")
    if r.hazards:
        out += ["#", *comment("Know before you run this:")]
        for hazard in r.hazards:
            out += comment(f"- {hazard.severity}: {hazard.sentence}", "  ")
    return out


def _arc_lines(r: Recommendation, layout: Layout) -> list[str]:
    """Return what is said of the ARC: the size that trials had is that of a trial, unless it was found."""
    given = "replay gave the ARC" if r.basis == "modelled" else "ARC was limited to"
    found = any(change.setting == "arc" for change in r.changes)
    meant = "" if found else ", which is no advice: leave it the memory that the host can spare"
    text = f"The {given} {units.amount(layout.arc)}{meant}. To set a limit on Linux until the next boot:"
    size = str(layout.arc) if found else "BYTES"
    return [*comment(text, "  "), f"#     echo {size} > /sys/module/zfs/parameters/zfs_arc_max"]


def _pool_lines(pool: Pool, r: Recommendation, layout: Layout) -> list[str]:
    lines = []
    for class_, word in (("data", ""), ("special", "special"), ("log", "log"), ("cache", "cache")):
        vdevs = [v for v in pool.vdevs if v.class_ == class_]
        if not vdevs:
            continue
        disks = []
        n = 0
        for vdev in vdevs:
            letters = [f"{(word or 'data').upper()}-DISK-{n + i}" for i in range(1, vdev.disks + 1)]
            n += vdev.disks
            disks.append(" ".join([*([] if vdev.kind == "stripe" else [vdev.kind]), *letters]))
        shape = pool.vdev_text(class_)
        if class_ == "data":
            lines.append(f"zpool create -o ashift={pool.ashift} POOL {' '.join(disks)}    # {_clean(shape)}")
        else:
            lines.append(f"zpool add POOL {word} {' '.join(disks)}    # {_clean(shape)}")
    return lines

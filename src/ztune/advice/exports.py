"""A recommendation for others to carry out: shell commands, an Ansible task file, JSON. Needs no ZFS here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ztune import output
from ztune.advice import commands
from ztune.advice.model import Recommendation
from ztune.advice.plan import Plan, applicable, wanted_by_name
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import PARAMETERS, TUNABLES
from ztune.study import Layout
from ztune.study.durability import judge
from ztune.units import listed, parse_size

VERSION = 1
_SIZES = ("recordsize", "volblocksize", "special_small_blocks")


def shell(recommendation: Recommendation, mapping: Mapping[str, str], plan: Plan | None) -> str:
    """Return a POSIX sh script: without ``mapping`` it creates datasets below roots that its caller names.

    With ``mapping`` (role → dataset) it sets the properties of those: only what differs where there is a
    ``plan``, else all but what would only take protection away. Prints only, unless called with --yes.
    """
    layout = applicable(recommendation)
    if not mapping:
        return commands.script(recommendation)
    lines: list[str] = []
    if plan is not None:
        if plan.settings:
            guids = {setting.dataset: setting.guid for setting in plan.settings}
            lines += [
                "",
                *commands.comment(_for_these(plan)),
            ]
            lines += [f"same {shlex.quote(name)} {shlex.quote(guid)}" for name, guid in guids.items()]
        for target in plan.targets:
            lines += ["", *commands.comment(f"{', '.join(target.roles)}: {target.dataset.name}")]
            for text in target.following:
                lines += commands.comment(text)
            for setting in target.settings:
                lines += commands.comment(f"was {setting.before.value} ({setting.before.source})", "  ")
                lines.append(f"run {shlex.join(setting.command)}")
        undo = [shlex.join(s.undo) for s in reversed(plan.settings)]
        lines += ["", *commands.comment("To take it back:"), *(f"#   {line}" for line in undo)]
    else:
        unseen = _unseen(layout, mapping)
        lines += commands.asked_of_host((settings for _, _, settings in unseen), shlex.quote(unseen[0][0]))
        for name, roles, settings in unseen:
            lines += ["", *commands.comment(f"{', '.join(roles)}: {name}")]
            words = [commands.shell_word(k, v) for k, v in settings.items()]
            lines.append(f"run_set {' '.join([*words, shlex.quote(name)])}")
            lines += _below(name, settings)
        lines += ["", *commands.comment(commands.LOOKED_AT_LATER)]
        said = "To take it back, write down first what is there: zfs get -o property,value,source all DATASET"
        lines += ["", *commands.comment(said)]
    return commands.setting_script(recommendation, lines, unseen=plan is None)


def _for_these(plan: Plan) -> str:
    return f"For {plan.host}, and for these datasets alone, by their guids:"


def ansible(recommendation: Recommendation, mapping: Mapping[str, str], plan: Plan | None = None) -> str:
    """Return an Ansible task file (YAML) for the collection community.general; a second run changes nothing.

    Without ``mapping`` the datasets are created below the variable ``ztune_root`` (``ztune_root_POOL`` for
    each pool where the layout has several), which a play has to define. With a ``plan`` the tasks are for its
    datasets alone: their guids are compared before the first change, and right before each.
    """
    layout = applicable(recommendation)
    out = ["---", *commands.intro(recommendation)]
    tasks: list[dict[str, Any]] = []
    if mapping:
        out += commands.comment(commands.LOOKED_AT_LATER)
        unseen = _unseen(layout, mapping)
        guids = {} if plan is None else {t.dataset.name: t.dataset.text("guid") for t in plan.targets}
        if plan is not None:
            named = ", ".join(f"{name} {guid}" for name, guid in guids.items())
            out += commands.comment(f"{_for_these(plan)} {named}. `--export ansible-role` is for many hosts.")
            for text in (text for target in plan.targets for text in target.following):
                out += commands.comment(text)
        tasks += [_same(name, guids[name], f"ztune_first_{i}") for i, name in enumerate(guids)]
        tasks += _asked_of_host([settings for _, _, settings in unseen], unseen[0][0])
        for i, (name, roles, settings) in enumerate(unseen):
            # The module would create a dataset that is missing, and an empty one helps nobody.
            out += _below(name, settings)
            there = f"ztune_there_{i}"
            keep = {k: found for k, v in settings.items() if (found := commands.stronger(k, v))}
            asked = ",".join(keep) or "type"
            tasks.append(
                {
                    "name": f"{name} exists",
                    "ansible.builtin.command": {"argv": ["zfs", "get", "-H", "-o", "value", asked, name]},
                    "register": there,
                    "changed_when": False,
                    "check_mode": False,
                }
            )
            given = {k: _unless(there, v, keep[k]) if k in keep else v for k, v in settings.items()}
            for task in _tasks(name, roles, given):
                # The module sets by name, which may be another dataset's by now.
                tasks += [_same(name, guids[name], f"ztune_guid_{i}")] if name in guids else []
                tasks.append(task)
    else:
        pools = [p.name for p in layout.used_pools()]
        roots = {
            p: "{{ ztune_root }}" if len(pools) == 1 else "{{ ztune_root_" + _word(p) + " }}" for p in pools
        }
        out += commands.comment(f"Define {' and '.join(roots.values())}: the pool, or a dataset on it.")
        names = commands.relative_names(layout)
        tasks += _asked_of_host([commands.properties(d, layout) for d in layout.datasets], roots[pools[0]])
        for dataset in sorted(layout.datasets, key=lambda d: names[d.name].count("/")):
            settings = commands.properties(dataset, layout)
            if dataset.volume is not None:
                settings = {"volsize": str(dataset.volume), **settings}
            tasks += _tasks(f"{roots[dataset.pool]}/{names[dataset.name]}", dataset.roles, settings)
    for name, number in sorted(layout.tunables.items()):
        if number != TUNABLES[name].default:
            tasks += _parameter(name, number)
    if layout.database:
        settings_text = ", ".join(f"{k} = {v}" for k, v in sorted(layout.database.items()))
        out += commands.comment(f"Left to you, in the database: {settings_text}.")
    if layout.workload:
        load = ", ".join(f"{k} = {v}" for k, v in sorted(layout.workload.items()))
        out += commands.comment(f"Left to you, in what the load does: {load}.")
    for i, task in enumerate(tasks):
        out += ["", *_yaml_task(task)] if i else _yaml_task(task)
    return "\n".join(out) + "\n"


def ansible_role(recommendation: Recommendation, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the files of an Ansible role: path in its folder → text. A second run changes nothing.

    Which dataset each role lives on is the variable ``ztune_datasets``, which a host or a group may set;
    ``mapping`` (role → dataset) is its default. A host where it names none, or one dataset for two that the
    layout keeps apart, fails before anything is set.
    """
    layout = applicable(recommendation)
    templates = {
        role: f"{{{{ ztune_datasets.{dataset.key} }}}}"
        for dataset in layout.datasets
        for role in dataset.roles
    }
    keys = [dataset.key for dataset in layout.datasets]
    given = {
        dataset.key: mapping[role] for dataset in layout.datasets for role in dataset.roles if role in mapping
    }
    named = " and ".join(f"ztune_datasets.{key} is defined" for key in keys)
    names = ", ".join(f"ztune_datasets.{key}" for key in keys)
    check = {
        "name": "each role has a dataset of its own on this host",
        "ansible.builtin.assert": {
            "that": [
                f"ztune_datasets is defined and {named}",
                f"[{names}] | unique | length == {len(keys)}",
            ],
            "fail_msg": f"ztune_datasets has to name a dataset for each of {listed(keys)}, no two the same",
        },
    }
    tasks = ansible(recommendation, templates)
    head, _, rest = tasks.partition("\n- ")
    intro = commands.intro(recommendation)
    defaults = ["---", *intro]
    defaults += ["ztune_datasets:", *(f"  {_scalar(k)}: {_scalar(v)}" for k, v in sorted(given.items()))]
    if not given:
        defaults[-1:] = ["ztune_datasets: {}"]
    meta = [
        "---",
        "galaxy_info:",
        "  role_name: ztune_layout",
        f"  description: {_scalar(f'The layout that ztune recommended in run {recommendation.subject.run}')}",
        "  license: MIT",
        '  min_ansible_version: "2.14"',
        "dependencies: []",
        "collections:",
        "  - community.general",
    ]
    return {
        "tasks/main.yml": "\n".join([head, *_yaml_task(check), "", f"- {rest}"]),
        "defaults/main.yml": "\n".join(defaults) + "\n",
        "meta/main.yml": "\n".join(meta) + "\n",
    }


def _unless(there: str, value: str, stronger: tuple[str, ...]) -> str:
    """Return ``value`` for Ansible, unless the variable ``there`` has found one that is ``stronger``."""
    words = ", ".join(f"'{word}'" for word in stronger)
    return f"{{{{ {there}.stdout_lines | select('in', [{words}]) | first | default('{value}') }}}}"


def _weak(settings: Mapping[str, str]) -> list[str]:
    return [f"{k}={v}" for k, v in settings.items() if commands.weakens(k, v, PROPERTIES[k].default)]


def _below(name: str, settings: Mapping[str, str]) -> list[str]:
    """Return a comment where those below ``name`` that it does not name would be weaker by ``settings``."""
    weak = _weak(settings)
    if not weak:
        return []
    said = f"Datasets below {name} that are not named here take {listed(weak)} from it: set theirs first."
    return commands.comment(said)


def _unseen(layout: Layout, mapping: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], dict[str, str]]]:
    """Return (dataset, its roles, what is set on it) for datasets of which nothing is known.

    Those above come first, as in a plan: one below that inherits sync=always would be left as it is, and
    inherit what is set above it then. One below another would inherit what the layout sets for that one
    alone: it gets ZFS's default. Which is below which a template of Ansible's does not say, so what weakens
    comes first, and each gets what any of them has.
    """
    wanted = wanted_by_name(layout, mapping)
    out = []
    weak = {name: _weak(commands.settable_unseen(d, layout)) for name, (d, _) in wanted.items()}
    for name in sorted(wanted, key=lambda name: (name.count("/"), not weak[name])):
        dataset, roles = wanted[name]
        settings = commands.settable_unseen(dataset, layout)
        for other, (above, _) in wanted.items():
            if name.startswith(f"{other}/") or "{{" in name:
                for prop in commands.settable_unseen(above, layout):
                    default = PROPERTIES[prop].default
                    taken = dataset.volume is None or PROPERTIES[prop].volumes
                    if taken and not commands.stronger(prop, default):
                        settings.setdefault(prop, default)
        out.append((name, roles, settings))
    return out


def _asked_of_host(settings: Sequence[Mapping[str, str]], target: str) -> list[dict[str, Any]]:
    """Return the tasks that ask a host's OpenZFS, by the dataset ``target``, for what it may lack."""
    return [
        {
            "name": f"is there a property {name}? {commands.without(name)}",
            "ansible.builtin.command": {"argv": ["zfs", "get", "-H", "-o", "value", name, target]},
            "environment": {"LC_ALL": "C"},
            "register": f"ztune_has_{name}",
            "changed_when": False,
            "failed_when": False,
            "check_mode": False,
        }
        for name in commands.lackable(settings)
    ]


def _tasks(name: str, roles: tuple[str, ...], settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the task that sets all that every OpenZFS has, and one for each property that it may lack."""
    apart = {k: v for k, v in settings.items() if commands.may_lack(k, v)}
    out = [_task(name, roles, {k: v for k, v in settings.items() if k not in apart})]
    for k, v in apart.items():
        task = _task(name, roles, {k: v})
        task["name"] += f": {k}"
        out.append({**task, "when": f"'invalid property' not in ztune_has_{k}.stderr"})
    return out


def _task(name: str, roles: tuple[str, ...], settings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": f"{', '.join(roles)} on {name}",
        "community.general.zfs": {
            "name": name,
            "state": "present",
            # In bytes: the module compares with what `zfs get -p` prints.
            "extra_zfs_properties": {
                k: str(parse_size(v)) if k in _SIZES else v for k, v in settings.items()
            },
        },
    }


def _same(name: str, guid: str, register: str) -> dict[str, Any]:
    """Return the task that fails unless the dataset ``name`` is the one that was compared."""
    # It becomes part of an expression of Ansible's; what is no number is nobody's.
    guid = guid if guid.isdecimal() else "not known"
    return {
        "name": f"{name} is the dataset that was compared: its guid is {guid}",
        "ansible.builtin.command": {"argv": ["zfs", "get", "-H", "-o", "value", "guid", name]},
        "register": register,
        "changed_when": False,
        "failed_when": f"{register}.rc != 0 or ({register}.stdout | trim) != '{guid}'",
        "check_mode": False,
    }


def _parameter(name: str, number: int) -> list[dict[str, Any]]:
    register = f"ztune_{name}"
    return [
        {
            "name": f"{name} at each boot",
            "ansible.builtin.lineinfile": {
                "path": "/etc/modprobe.d/zfs.conf",
                "regexp": f"^options zfs {name}=",
                "line": f"options zfs {name}={number}",
                "create": True,
                "mode": "0644",
            },
        },
        {
            "name": f"{name} now",
            "ansible.builtin.slurp": {"src": f"{PARAMETERS}/{name}"},
            "register": register,
        },
        {
            "name": f"{name} from now on",
            "ansible.builtin.shell": {"cmd": f"echo {number} > {PARAMETERS}/{name}"},
            "when": f"({register}.content | b64decode | trim) != '{number}'",
        },
    ]


def _word(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


def _yaml_task(task: Mapping[str, Any]) -> list[str]:
    lines = _yaml(task, 1)
    return ["- " + lines[0].lstrip(), *lines[1:]]


def _yaml(node: Mapping[str, Any], depth: int) -> list[str]:
    """Return a mapping as YAML in block style. Scalars are JSON texts, which YAML reads as themselves."""
    out = []
    for key, value in node.items():
        pad = "  " * depth
        if isinstance(value, Mapping):
            out += [f"{pad}{key}:", *_yaml(value, depth + 1)]
        elif isinstance(value, list):
            out += [f"{pad}{key}:", *(f"{pad}  - {_scalar(item)}" for item in value)]
        else:
            out.append(f"{pad}{key}: {_scalar(value)}")
    return out


def _scalar(value: object) -> str:
    return output.json_text(value, indent=None)


def as_json(recommendation: Recommendation, mapping: Mapping[str, str], plan: Plan | None) -> str:
    """Return everything as JSON: the layout, what is to be set where, and the plan if the host was read."""
    layout = applicable(recommendation)
    data: dict[str, Any] = {
        "format": "ztune-apply",
        "version": VERSION,
        "run": recommendation.subject.run,
        "layout_name": recommendation.layout_name,
        "layout_hash": recommendation.layout_hash,
        "evidence": recommendation.evidence(),
        "durability": judge(layout).klass.value,
        "layout": layout.to_json(),
        "datasets": [
            {
                "name": name,
                "roles": list(roles),
                "properties": settings,
                "stays": {k: list(found) for k, v in settings.items() if (found := commands.stronger(k, v))},
            }
            for name, roles, settings in _unseen(layout, mapping)
        ],
        "create": [shlex.join(words) for words in commands.create_commands(recommendation)],
        "tunables": dict(layout.tunables),
        "database": dict(layout.database),
        "workload": dict(layout.workload),
        "plan": None if plan is None else _plan(plan),
    }
    return output.json_text(data) + "\n"


def _plan(plan: Plan) -> dict[str, Any]:
    raw = asdict(plan)
    raw["targets"] = [
        {
            **{k: v for k, v in asdict(target).items() if k != "dataset"},
            "dataset": target.dataset.name,
            "settings": [
                {**asdict(s), "command": shlex.join(s.command), "undo": shlex.join(s.undo)}
                for s in target.settings
            ],
        }
        for target in plan.targets
    ]
    return {**raw, "before": plan.before.value, "after": plan.after.value, "weaker": plan.weaker}

"""What a run is refused for, before it is stored or goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ztune import __version__
from ztune.errors import InputError
from ztune.onhost.host.room import needed_by
from ztune.onhost.jobs import registry as jobs
from ztune.places.users_host import UsersHost
from ztune.runs import at_work
from ztune.runs.at_work import HostAtWork, Hosts
from ztune.runs.follow import ScreenedPrior
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.plan import RunJob
from ztune.store.records import Run
from ztune.study import Layout, Study


def versions_of(there: dict[str, Any], job: RunJob) -> dict[str, str]:
    """Return the versions that a run of ``job`` is made under; ``there``: what a place says of its host."""
    found = {
        "ztune": __version__,
        # In user space there is no module, but a library.
        "openzfs": at_work.openzfs(there),
        "ztune-mount": str(there.get("mount", "")),
        "kernel": str(there.get("kernel", "")),
        "database": job.version,
    }
    return {k: v for k, v in found.items() if v}


def require_same(run: Run, now: Mapping[str, str], where: str) -> None:
    """Raise InputError where a run was made under other versions than there are now at its place."""
    for part, before in run.versions.items():
        if part != "ztune" and now.get(part, before) != before:
            raise InputError(
                f"run {run.id} was made under {part} {before}, {where} has {now[part]} now: results "
                "are not to be mixed; start a new run without --resume"
            )


def check_there(hosts: Hosts, host: HostAtWork, study: Study, layout: Layout, job: RunJob) -> None:
    """Raise InputError, MissingError if ``job`` can't be tried in ``layout`` on ``host``, which they name."""
    try:
        host.place.check(study, layout)
        if isinstance(host.place, UsersHost):
            params = job.under(layout, study.layout).params
            host.place.check_room(layout, needed_by(jobs.get(job.name)(params, layout.database)))
    except InputError as error:
        raise error if hosts.rack is None else InputError(f"{host.place.name}: {error}") from None


def possible(
    prior: ScreenedPrior, study: Study, job: RunJob, hosts: Hosts, observer: Observer
) -> ScreenedPrior:
    """Return ``prior`` without layouts that can't run on ``hosts``, and say which; raise what the best of
    them is refused for if none can."""
    refused: dict[str, InputError] = {}

    def can_run(layout: Layout) -> bool:
        try:
            check_settings(job.under(layout, study.layout), layout)
            for host in hosts.up:
                check_there(hosts, host, study, layout, job)
        except InputError as error:
            refused[layout.name] = error
            return False
        return True

    left = prior.only(study, can_run)
    if not left.layouts:
        raise next(iter(refused.values()))
    if refused:
        name, error = next(iter(refused.items()))
        observer.say(f"{len(refused)} of the screened layouts can't run there, such as {name}: {error}")
    return left


def check_options(options: TrialOptions, layouts: Sequence[Layout]) -> None:
    """Raise InputError for options that can't be, or that leave nothing to compare."""
    least, most = options.blocks
    if not 1 <= least <= most:
        raise InputError(f"--blocks is {least}:{most}; write MIN:MAX with 1 ≤ MIN ≤ MAX, such as 3:8")
    if not 0 < options.resolution < 1:
        raise InputError(f"--resolution is {options.resolution:g}; it is a share such as 2%")
    if len(layouts) < 2 and not options.aa:
        raise InputError("there is only the baseline to run; a comparison needs another layout")


def check_roles(job: RunJob, layout: Layout, study: Study) -> None:
    """Raise InputError where a role of the job has no dataset in ``layout``."""
    for role in job.roles:
        if layout.dataset_of(role) is None:
            raise InputError(
                f'role {role} of workload {job.workload} has no dataset in layout "{layout.name}" of study '
                f'"{study.name}"; add it to the roles of a dataset'
            )


def check_settings(job: RunJob, layout: Layout) -> None:
    """Refuse a layout with a setting that its job would refuse, or whose value can't be."""
    made = jobs.get(job.name)(job.params, layout.database)
    check = getattr(made, "check_settings", None)  # another's job may do without
    try:
        if check is not None:
            check()
    except InputError as error:
        raise InputError(f'layout "{layout.name}": {error}') from None

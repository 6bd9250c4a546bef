"""How much of a trace a screening replays: what was asked for, or what suits trace and study."""

from __future__ import annotations

from collections.abc import Mapping

from ztune.errors import InputError
from ztune.places.replay import prepare
from ztune.runs.options import ScreenOptions
from ztune.runs.space import AGE
from ztune.study import Study
from ztune.study.layout import MIN_ARC
from ztune.trace.rate import REGION, Rate, Work, check_rate, default_rate, is_all
from ztune.trace.reader import Trace
from ztune.units import format_size, parse_size


def sampling_rate(study: Study, trace: Trace, options: ScreenOptions) -> Rate:
    """Return how much of ``trace`` is replayed: what was asked for, or what suits trace and study.

    Raises InputError where a part can't be replayed.
    """
    varied = study.varied
    arcs = [study.layout.arc, *(parse_size(str(value)) for value in varied.get("arc", ()))]
    sizes = [parse_size(d.properties["recordsize"]) for d in study.layout.datasets]
    sizes += [parse_size(str(v)) for key, vs in varied.items() if key.endswith(".recordsize") for v in vs]
    region = max(REGION, *sizes)
    whole = {
        "--with": bool(options.beside),
        "--age": bool(options.ages) or study.layout.age is not None or AGE in varied,
    }
    if (recorded := recorded_rate(trace)) > 1:
        return _rate_of_sampled(trace, recorded, options, whole, region, min(arcs))
    if options.sample > 1:
        for flag, asked in whole.items():
            if asked:
                raise InputError(
                    f"--sample 1/{options.sample} can't be replayed with {flag}; leave out one of the two"
                )
        check_rate(options.sample, min(arcs), MIN_ARC)
        if options.load == "all":
            raise InputError(
                f"--load all loads no sample; leave out --sample 1/{options.sample} or --load all"
            )
    if options.sample or options.load == "all" or any(whole.values()):
        return Rate(max(options.sample, 1), region=region)
    data = sum(max(f.size_start, f.size_end) for f in trace.manifest.files if f.role is not None)
    if is_all(trace.manifest.events, data, min(arcs), MIN_ARC):
        return Rate(1, region=region)
    return Rate(default_rate(_work(trace), min(arcs), MIN_ARC), region=region)


def _work(trace: Trace) -> Work:
    from ztune.trace import sampling  # here, as it takes NumPy

    inputs = prepare(trace)
    return sampling.work(inputs.ops, inputs.files)


def recorded_rate(trace: Trace) -> int:
    """Return that one region in how many of ``trace`` was recorded; 1: all."""
    return trace.manifest.sample.of if trace.manifest.sample is not None else 1


def _rate_of_sampled(
    trace: Trace,
    recorded: int,
    options: ScreenOptions,
    whole: Mapping[str, bool],
    region: int,
    least_arc: int,
) -> Rate:
    """Return how much is replayed of a recording by sample: what is there, or as much less as is asked for.

    ``whole``: what can't be done with a part, and whether it is asked for. Raises InputError.
    """
    about = f"{trace.path} was recorded with --sample 1/{recorded}"
    for flag, asked in {**whole, "--load all": options.load == "all"}.items():
        if asked:
            raise InputError(f"{about}, and {flag} needs all; leave it out, or record without --sample")
    if region > REGION:
        raise InputError(
            f"{about}, in regions of {format_size(REGION)}: records of {format_size(region)} "
            "can't be replayed; leave out those larger than a region, or record without --sample"
        )
    if options.sample and options.sample % recorded:
        raise InputError(
            f"{about}, so --sample 1/{options.sample} is not there; write 1/{recorded}, or "
            f"1/{2 * recorded} for half of it"
        )
    if least_arc // recorded < MIN_ARC:
        raise InputError(
            f"{about}, which leaves {format_size(least_arc // recorded)} of the smallest ARC of the study "
            f"({format_size(least_arc)}), and OpenZFS takes no less than {format_size(MIN_ARC)}; "
            f"--arc {format_size(recorded * MIN_ARC)} is the least, or record without --sample"
        )
    check_rate(options.sample or recorded, least_arc, MIN_ARC)
    if options.sample:
        return Rate(options.sample, region=region)
    return Rate(recorded * default_rate(_work(trace), least_arc // recorded, MIN_ARC), region=region)

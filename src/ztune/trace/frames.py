"""Polars, by which events are summed up; MissingError where this processor can't run the build there is."""

from __future__ import annotations

import warnings

from ztune.errors import MissingError
from ztune.packages import OTHER_POLARS

__all__ = ["pl"]

with warnings.catch_warnings():
    # Polars warns and goes on, to be ended by the first instruction that the processor does not know.
    warnings.filterwarnings("error", "Missing required CPU features", RuntimeWarning)
    try:
        import polars as pl
    except RuntimeWarning:
        raise MissingError(
            "Polars, which sums up traces, is built for AVX2 and its like here; this processor, or what a "
            "virtual machine shows of it, lacks these. Its other build does without: " + OTHER_POLARS
        ) from None

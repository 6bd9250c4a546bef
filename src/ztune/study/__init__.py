"""What is asked: Study and Layout, read from TOML, checked as ZFS would.

The vocabulary of the rest: this package imports no other part of ztune but its errors and paths, and every
part may import it.
"""

from ztune.onhost.layout import Dataset, Layout, Pool, Vdev
from ztune.onhost.words import OBJECTIVES, ROLES, DurabilityClass
from ztune.study.layout import default_setting, optional_setting, parse_layout, with_settings
from ztune.study.profile import FlashProfile, HddProfile, Profile
from ztune.study.study import NamedLayout, Objective, Study

__all__ = [
    "OBJECTIVES",
    "ROLES",
    "Dataset",
    "DurabilityClass",
    "FlashProfile",
    "HddProfile",
    "Layout",
    "NamedLayout",
    "Objective",
    "Pool",
    "Profile",
    "Study",
    "Vdev",
    "default_setting",
    "load_study",
    "optional_setting",
    "parse_layout",
    "with_settings",
]


def load_study(path: object) -> Study:
    """Load and check a study file. See ``ztune.study.loader.load_study``."""
    from pathlib import Path

    from ztune.study.loader import load_study as load

    return load(Path(str(path)))

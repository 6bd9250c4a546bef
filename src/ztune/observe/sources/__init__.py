"""Reads the output of other tools (``ztune observe --from FILE``). See docs/observe-files.md."""

from ztune.observe.sources.files import READERS, read_files
from ztune.observe.sources.histogram_meaning import MEANINGS

__all__ = ["MEANINGS", "READERS", "read_files"]

"""ztune: finds the ZFS layout that suits a database, and proves it."""

import os as _os
import sys as _sys
from pathlib import Path as _Path

# In the program that is sent to hosts it is no file.
if _os.geteuid() == 0 and _Path(__file__).is_file() and _Path(__file__).stat().st_uid != 0:
    # `sudo .venv/bin/ztune` in a user's source tree: the user could not delete a folder of root's bytecode.
    _sys.dont_write_bytecode = True

__version__ = "0.1.0"

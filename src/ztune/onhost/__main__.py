"""``python3 -m ztune.onhost``: the trial program, as in the zipapp."""

import sys

from ztune.onhost.main import main

sys.exit(main())

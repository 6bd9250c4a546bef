"""``python3 -m ztune.trial``: the trial program, as in the zipapp."""

import sys

from ztune.trial.main import main

sys.exit(main())

"""The made-up evidence lives with the tests of the analysis."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

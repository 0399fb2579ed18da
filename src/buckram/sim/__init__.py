"""In a checkout, `python -m buckram.sim` runs the folder `simulator` beside `src`. In no wheel."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))

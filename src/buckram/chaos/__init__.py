"""In a checkout, `python -m buckram.chaos` and its child processes run the folder `chaos` beside `src`. In no wheel."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
__path__.append(str(_ROOT / "chaos"))
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))

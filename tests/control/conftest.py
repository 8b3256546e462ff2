"""Makes the helpers of this folder importable; its tests need Gymnasium."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if find_spec("gymnasium") else ["test_*.py"]

"""The lab: every published figure measured with the library's own functions, and exact truth for estimators.

The command `outdo lab` runs the experiments. For estimators of one's own there are small environments whose
policy gradient is known exactly, and `check_estimator`, which compares with it.
"""

from outdo.lab.check import Case, EstimatorError, Report, check_estimator, exact_environments
from outdo.lab.exact.bandit import Bandit
from outdo.lab.exact.chain import Chain
from outdo.lab.exact.grid import GridWorld
from outdo.lab.exact.sequences import Sequences
from outdo.lab.exact.tabular import Exact, Misjudged, gradient, logits_of, logp

__all__ = [
    "Bandit",
    "Case",
    "Chain",
    "EstimatorError",
    "Exact",
    "GridWorld",
    "Misjudged",
    "Report",
    "Sequences",
    "check_estimator",
    "exact_environments",
    "gradient",
    "logits_of",
    "logp",
]

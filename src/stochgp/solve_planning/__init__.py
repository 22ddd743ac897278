"""What solver="auto" means: what kernel solves cost in seconds and bytes, and which one is taken."""

from .choice import NAMES, SolvePlan, choose, plan, room_for_rows
from .costs import Costs, calibrate
from .memory import Layout, Problem, solve_bytes
from .prediction import PredictionPlan, plan_prediction, require_covariance, require_samples

__all__ = [
    "NAMES",
    "Costs",
    "Layout",
    "PredictionPlan",
    "Problem",
    "SolvePlan",
    "calibrate",
    "choose",
    "plan",
    "plan_prediction",
    "require_covariance",
    "require_samples",
    "room_for_rows",
    "solve_bytes",
]

"""Check the correctness of mixers on a few short documents."""

from lra.checks.run import CHECKS, Check, CheckResult, check_before_run, run_checks
from lra.checks.subject import Subject

__all__ = ["CHECKS", "Check", "CheckResult", "Subject", "check_before_run", "run_checks"]

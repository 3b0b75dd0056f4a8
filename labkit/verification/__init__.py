"""Reference taps, budgets, verdicts: does an engine compute what the checkpoint means?"""

from labkit.verification.callable import verify_callable as verify_callable
from labkit.verification.report import Report as Report
from labkit.verification.verify import verify as verify

"""Properties that a GPT-2 must have whatever its weights: checks that need no reference values."""

from labkit.verification.invariants.check import INVARIANTS as INVARIANTS
from labkit.verification.invariants.check import check_callable as check_callable
from labkit.verification.invariants.check import check_engine as check_engine
from labkit.verification.invariants.check import check_model as check_model
from labkit.verification.invariants.check import check_trace as check_trace
from labkit.verification.invariants.engine import Engine as Engine
from labkit.verification.invariants.result import InvariantResult as InvariantResult
from labkit.verification.invariants.result import return_code as return_code

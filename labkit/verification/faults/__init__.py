"""Named faults, planted in a real forward of labkit's model: what a port gets wrong, on purpose.

A fault edits the model's parameters or exchanges one of its operations in one block. None of this shares code with
the replay of hypotheses, so that a diagnosis which names a planted fault has found it and not recognised itself.
"""

from labkit.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from labkit.outside import shown, whole_number
from labkit.verification.faults import attention, matrices, norms, stream
from labkit.verification.faults.fault import Fault as Fault

_ALL = (*norms.EMBEDDING, *norms.NORM, *attention.ATTENTION, *matrices.FAULTS, *stream.STREAM)
FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}


def parse_fault(text: str) -> tuple[Fault, int]:
    """``NAME`` or ``NAME:BLOCK`` -> the fault and the block (0 unless given).

    >>> fault, block = parse_fault("no-mask:3")
    >>> fault.expected_stage(block)
    'h.3.attn.pattern'
    """
    if not isinstance(text, str):
        raise ArgumentTypeError("a fault is named by a text", expected="NAME or NAME:BLOCK", got=repr(text))
    name, colon, place = text.partition(":")
    if name not in FAULTS:
        raise UnknownNameError.near("fault", name, FAULTS)
    block = whole_number(place) if colon else 0
    if block is None:
        raise ArgumentError("the block of a fault is not a number", expected="NAME or NAME:BLOCK", got=shown(text))
    return FAULTS[name], block

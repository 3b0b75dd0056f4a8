"""Named faults, planted in a real forward of labkit's model: what a port gets wrong, on purpose.

A fault edits the model's parameters or exchanges one of its operations in one block. None of this shares code with
the replay of hypotheses, so that a diagnosis which names a planted fault has found it and not recognised itself.
"""

from collections.abc import Iterable, Sequence

from labkit.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from labkit.model import GPT2
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


def plantings(plant: str | Sequence[str] | None) -> tuple[str, ...]:
    """The faults to plant, as ``NAME`` or ``NAME:BLOCK``, from one, several or none; raises where one comes twice.

    >>> plantings("no-mask:3"), plantings(["no-mask:3", "erf-gelu"]), plantings(None)
    (('no-mask:3',), ('no-mask:3', 'erf-gelu'), ())
    """
    if plant is None or isinstance(plant, str):
        plant = () if plant is None else (plant,)
    if not isinstance(plant, Iterable):
        raise ArgumentTypeError(
            "a fault is named by a text", where="plant", expected="NAME or NAME:BLOCK", got=repr(plant)
        )
    texts = tuple(plant)
    faults = [parse_fault(text) for text in texts]
    for number, fault in enumerate(faults):
        if fault in faults[:number]:
            raise ArgumentError("a fault is planted twice in one block", got=shown(texts[number]), fix="plant it once")
    return texts


def plant_all(model: GPT2, plant: str | Sequence[str] | None) -> GPT2:
    """The model with every one of the faults planted; raises as ``plantings`` and ``Fault.plant`` do."""
    for text in plantings(plant):
        fault, block = parse_fault(text)
        model = fault.plant(model, block)
    return model

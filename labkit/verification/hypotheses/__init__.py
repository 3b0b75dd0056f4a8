"""The named mistakes that a verdict chooses among, each a small function from a scene to the stages as then run."""

from labkit.verification.hypotheses import attention, embedding, norm, pattern, product, stream
from labkit.verification.hypotheses.scene import Hypothesis as Hypothesis
from labkit.verification.hypotheses.scene import Scene as Scene
from labkit.verification.hypotheses.scene import Variants as Variants
from labkit.verification.hypotheses.scene import ask_to_record as ask_to_record
from labkit.verification.hypotheses.scene import site_of as site_of
from labkit.verification.hypotheses.scene import site_taps as site_taps

HYPOTHESES: tuple[Hypothesis, ...] = (
    *embedding.HYPOTHESES,
    *norm.HYPOTHESES,
    *attention.HYPOTHESES,
    *pattern.HYPOTHESES,
    *product.HYPOTHESES,
    *stream.HYPOTHESES,
)
"""All of them, in order of computation."""

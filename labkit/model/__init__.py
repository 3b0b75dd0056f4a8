"""parameters -> activations: a GPT-2 written to be read, with a tap at every stage."""

from labkit.model.forward import Attention as Attention
from labkit.model.forward import Cache as Cache
from labkit.model.gpt2 import GPT2 as GPT2
from labkit.model.gpt2 import Run as Run
from labkit.model.interventions import ablate_heads as ablate_heads
from labkit.model.interventions import logit_lens as logit_lens
from labkit.model.interventions import patch_positions as patch_positions
from labkit.model.operations import Operations as Operations
from labkit.model.taps import match_taps as match_taps
from labkit.model.taps import tap_axes as tap_axes
from labkit.model.taps import tap_names as tap_names

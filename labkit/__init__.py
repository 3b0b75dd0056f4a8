"""labkit: does my code compute what this GPT-2 checkpoint means, and if not, which operation is wrong, and why?

The names below are the public ones. Each is looked up when first used, so ``import labkit`` loads neither
torch nor matplotlib.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy_names

if TYPE_CHECKING:
    from labkit.config import GPT2Config as GPT2Config
    from labkit.errors import LabkitError as LabkitError
    from labkit.generation import generate as generate
    from labkit.load import load_gpt2 as load_gpt2
    from labkit.model import GPT2 as GPT2
    from labkit.storage import open_safetensors as open_safetensors
    from labkit.storage import save_safetensors as save_safetensors
    from labkit.tokenizer import Tokenizer as Tokenizer
    from labkit.verification import verify as verify
    from labkit.verification import verify_callable as verify_callable

_HOMES = {
    "GPT2": "labkit.model",
    "GPT2Config": "labkit.config",
    "LabkitError": "labkit.errors",
    "Tokenizer": "labkit.tokenizer",
    "generate": "labkit.generation",
    "load_gpt2": "labkit.load",
    "open_safetensors": "labkit.storage",
    "save_safetensors": "labkit.storage",
    "verify": "labkit.verification",
    "verify_callable": "labkit.verification",
}

__version__ = "0.1.0"
__all__ = ["__version__", *_HOMES]
__getattr__, __dir__ = lazy_names(__name__, _HOMES, ready=["__version__"])

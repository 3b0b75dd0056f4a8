"""ids -> ids: text from a GPT-2, token by token.

    prompt -> ids -> prefill (one pass over the prompt) -> step (one pass a token) -> choose -> id -> text

``generate`` gives a finished ``Generation``, ``stream`` gives its tokens as they come, ``generate_batch`` continues
several prompts in shared passes. ``greedy(model, ids, count)`` is the plain function for whoever compares
models: the ids of the largest logits, one after another, with no settings of a checkpoint, no stop token, and
planted faults as they are.

Nothing here imports torch until a name is used.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy_names

if TYPE_CHECKING:
    from labkit.generation.cache import KVCache as KVCache
    from labkit.generation.continuation import greedy as greedy
    from labkit.generation.prepared import forget as forget
    from labkit.generation.settings import Settings as Settings
    from labkit.generation.settings import checkpoint_settings as checkpoint_settings
    from labkit.generation.verbs import Generation as Generation
    from labkit.generation.verbs import Stream as Stream
    from labkit.generation.verbs import Token as Token
    from labkit.generation.verbs import generate as generate
    from labkit.generation.verbs import generate_batch as generate_batch
    from labkit.generation.verbs import stream as stream
    from labkit.generation.verbs import stream_batch as stream_batch

_HOMES = {
    "Generation": "labkit.generation.verbs",
    "KVCache": "labkit.generation.cache",
    "Settings": "labkit.generation.settings",
    "Stream": "labkit.generation.verbs",
    "Token": "labkit.generation.verbs",
    "checkpoint_settings": "labkit.generation.settings",
    "forget": "labkit.generation.prepared",
    "generate": "labkit.generation.verbs",
    "generate_batch": "labkit.generation.verbs",
    "greedy": "labkit.generation.continuation",
    "stream": "labkit.generation.verbs",
    "stream_batch": "labkit.generation.verbs",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

"""What a widget needs beside a model."""

from labkit.generation.verbs import checkpoint_folder, find_tokenizer
from labkit.model import GPT2
from labkit.tokenizer import Tokenizer


def tokenizer_of(model: GPT2) -> Tokenizer:
    """The tokenizer beside the model's checkpoint; ArgumentError where there is none.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> tokenizer_of(model).vocabulary_size == model.config.vocab_size
    True
    """
    tokenizer, _notes = find_tokenizer(model, checkpoint_folder(model), needed=True)
    assert tokenizer is not None
    return tokenizer

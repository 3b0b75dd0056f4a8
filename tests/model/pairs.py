"""A labkit model and the transformers model of the same random parameters."""

import torch

from labkit.config import GPT2Config, parse_config
from labkit.model import GPT2
from tests.oracles import random_checkpoint

IDS = [[5, 17, 3, 41, 42, 7, 25, 11], [1, 1, 2, 3, 5, 8, 13, 21]]


def parameters_of(reference: torch.nn.Module, *, tied: bool = True) -> dict[str, torch.Tensor]:
    named = {name.removeprefix("transformer."): each for name, each in reference.state_dict().items()}
    return {name: each for name, each in named.items() if not (tied and name == "lm_head.weight")}


def pair(**fields: object) -> tuple[GPT2, torch.nn.Module]:
    reference = random_checkpoint.build(**fields)
    config = parse_config(reference.config.to_dict())
    return GPT2(config, parameters_of(reference, tied=config.tie_word_embeddings)), reference


def fields_of(config: GPT2Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in GPT2Config.__dataclass_fields__}

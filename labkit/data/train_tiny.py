"""Make the embedded checkpoint ``labkit/data/tiny``: a very small GPT-2 trained on Jane Austen's novels.

The six novels come from the Debian package ``r-cran-janeaustenr``. The stages, one function each, are: read the
corpus, hold out the end of every novel, train a byte-level BPE tokenizer, encode, train the model, save the folder.

Run it as ``python -m labkit.data.train_tiny --output labkit/data/tiny --state STATE``, where STATE is a folder outside
the repository.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.data.novels import DEBIAN_CORPUS, read_corpus, split_corpus

END_OF_TEXT = "<|endoftext|>"
PROMPTS = (
    "It was a truth",
    "She had been",
    "Mr. Darcy",
    '"My dear Emma," said',
    "The next morning",
    "Elizabeth could not",
    "They were all",
    "He was a young man",
)


# --- Tokenizer ------------------------------------------------------------------------------------------------------


def train_tokenizer(texts: list[str], vocab_size: int) -> Any:
    """Train a byte-level BPE with GPT-2's pre-tokenisation; ids run as GPT-2's: bytes, merges, ``<|endoftext|>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    def byte_level(model: models.BPE) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        return tokenizer

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    learned = byte_level(models.BPE())
    learned.train_from_iterator(texts, trainer)
    state = json.loads(learned.to_str())["model"]
    vocab: dict[str, int] = dict(state["vocab"])
    if len(vocab) != vocab_size - 1:
        raise ValueError(f"the corpus gave {len(vocab)} tokens, not {vocab_size - 1}")
    vocab[END_OF_TEXT] = len(vocab)
    merges = [(pair[0], pair[1]) for pair in state["merges"]]
    tokenizer = byte_level(models.BPE(vocab, merges))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def encode(tokenizer: Any, texts: list[str]) -> Tensor:
    """Encode the documents into one stream of ids with ``<|endoftext|>`` before each and after the last."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end]
    for encoding in tokenizer.encode_batch(texts):
        ids.extend(encoding.ids)
        ids.append(end)
    return torch.tensor(ids, dtype=torch.long)


# --- Training -------------------------------------------------------------------------------------------------------


def build_model(arguments: argparse.Namespace, end_id: int) -> Any:
    """Build the untrained GPT-2, float32, with GPT-2's defaults for all that is not a size."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=arguments.vocab_size,
        n_positions=arguments.positions,
        n_embd=arguments.width,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        resid_pdrop=arguments.dropout,
        embd_pdrop=arguments.dropout,
        attn_pdrop=0.0,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    return GPT2LMHeadModel(config)


def build_optimizers(model: Any, arguments: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, LayerNorms and biases."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and ".h." in name else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=arguments.muon_lr, weight_decay=arguments.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=arguments.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0)
    optimizers: list[torch.optim.Optimizer] = [muon, adamw]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def learning_rate_factor(fraction: float) -> float:
    """The share of the peak learning rate at this fraction of the time: 2 % linear warm-up, then a cosine to 0."""
    warm_up = 0.02
    if fraction < warm_up:
        return max(fraction, 1e-4) / warm_up
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (fraction - warm_up) / (1 - warm_up))))


def batches(ids: Tensor, length: int, size: int) -> Iterator[Tensor]:
    """Yield batches of ``length + 1`` ids for ever; each pass cuts the stream at a new offset and shuffles it."""
    while True:
        offset = random.randrange(length)
        starts = list(range(offset, len(ids) - length - 1, length))
        random.shuffle(starts)
        for first in range(0, len(starts) - size + 1, size):
            yield torch.stack([ids[start : start + length + 1] for start in starts[first : first + size]])


def mean_loss(model: Any, batch: Tensor, reduction: str = "mean") -> Tensor:
    """Next-token cross-entropy in nats."""
    logits = model(batch[:, :-1], use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def evaluate(model: Any, ids: Tensor, length: int) -> float:
    """Mean loss in nats a token over ``ids`` in windows of ``length`` that do not overlap, in float32."""
    model.eval()
    total = 0.0
    for start in range(0, len(ids) - 1, length):
        total += float(mean_loss(model, ids[start : start + length + 1][None], reduction="sum"))
    model.train()
    return total / (len(ids) - 1)


def train(
    model: Any, tokenizer: Any, train_ids: Tensor, held_out_ids: Tensor, arguments: argparse.Namespace
) -> dict[str, float]:
    """Train for the given minutes; the learning rate follows the elapsed time, so the schedule always completes.

    The state is kept in ``arguments.state`` (a stopped run goes on from there) and the output folder is refreshed
    every ``arguments.save_minutes``.
    """
    optimizers = build_optimizers(model, arguments)
    state_file: Path = arguments.state / "state.pt"
    step, before = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, optimizer_state in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        step, before = state["step"], state["elapsed"]
    model.train()
    started, saved, running = time.monotonic(), before, 0.0
    stream = batches(train_ids, arguments.positions, arguments.batch_size)
    while (elapsed := before + time.monotonic() - started) < arguments.minutes * 60:
        factor = learning_rate_factor(elapsed / (arguments.minutes * 60))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
        with torch.autocast("cpu", torch.bfloat16):
            loss = mean_loss(model, next(stream))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        value = float(loss.detach())
        running = value if running == 0.0 else 0.98 * running + 0.02 * value
        if step % 50 == 0:
            print(f"step {step} minutes {elapsed / 60:.1f} rate {factor:.3f} loss {running:.3f}", flush=True)
        if elapsed - saved > arguments.save_minutes * 60:
            saved = elapsed
            held_out = evaluate(model, held_out_ids, arguments.positions)
            print(f"step {step} minutes {elapsed / 60:.1f} held-out loss {held_out:.4f}", flush=True)
            print_samples(model, tokenizer)
            state = {
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "step": step,
                "elapsed": elapsed,
            }
            torch.save(state, state_file.with_suffix(".new"))
            state_file.with_suffix(".new").replace(state_file)
            save(model, tokenizer, arguments)
    model.eval()
    sample = train_ids[: 200 * arguments.positions + 1]
    return {
        "steps": step,
        "train_loss": evaluate(model, sample, arguments.positions),
        "held_out_loss": evaluate(model, held_out_ids, arguments.positions),
    }


@torch.no_grad()
def print_samples(model: Any, tokenizer: Any, new_tokens: int = 40) -> None:
    """Print the greedy continuation of a few prompts."""
    model.eval()
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        start = len(ids)
        for _ in range(new_tokens):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        print(f"  [{len(set(ids[start:]))} distinct] {prompt!r} -> {tokenizer.decode(ids[start:])!r}", flush=True)
    model.train()


# --- Save -----------------------------------------------------------------------------------------------------------


def save(model: Any, tokenizer: Any, arguments: argparse.Namespace) -> None:
    """Write the checkpoint beside the state, then move it file by file into the output folder."""
    from transformers import GPT2TokenizerFast

    folder: Path = arguments.state / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.model.save(str(folder))
    wrapped = GPT2TokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        add_prefix_space=False,
        model_max_length=arguments.positions,
    )
    wrapped.save_pretrained(folder)
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        part = output / f".{file.name}.part"
        part.write_bytes(file.read_bytes())
        part.replace(output / file.name)


def parse_arguments() -> argparse.Namespace:
    """Read the command line; ``tiny/README.md`` says with which options the committed checkpoint was made."""
    parser = argparse.ArgumentParser(description="Train labkit's embedded GPT-2 checkpoint.")
    parser.add_argument("--corpus", type=Path, default=DEBIAN_CORPUS, help="Rdata.rdb of the package janeaustenr")
    parser.add_argument("--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--state", type=Path, required=True, help="folder for the state of the run")
    parser.add_argument("--minutes", type=float, default=70.0, help="time to train")
    parser.add_argument("--save-minutes", type=float, default=5.0, help="time between two refreshes of the output")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--held-out", type=float, default=0.02, help="share of each novel's end kept for validation")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--muon-lr", type=float, default=4e-3)
    parser.add_argument("--adamw-lr", type=float, default=6e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    return parser.parse_args()


def main() -> None:
    """Run all stages."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    arguments.state.mkdir(parents=True, exist_ok=True)

    novels = read_corpus(arguments.corpus)
    split = split_corpus(novels, arguments.held_out)
    for novel in novels:
        size = sum(len(paragraph) for chapter in novel.chapters for paragraph in chapter)
        print(f"{novel.title}: {len(novel.chapters)} chapters, {size} characters")
    tokenizer = train_tokenizer(split.train, arguments.vocab_size)
    train_ids, held_out_ids = encode(tokenizer, split.train), encode(tokenizer, split.held_out)
    held_out_bytes = sum(len(text.encode("utf-8")) for text in split.held_out)
    print(f"{len(train_ids)} training tokens, {len(held_out_ids)} held-out tokens, {held_out_bytes} held-out bytes")
    model = build_model(arguments, tokenizer.token_to_id(END_OF_TEXT))
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters", flush=True)

    figures = train(model, tokenizer, train_ids, held_out_ids, arguments)
    nats = figures["held_out_loss"] * (len(held_out_ids) - 1)
    figures["held_out_bits_per_byte"] = nats / math.log(2) / held_out_bytes
    save(model, tokenizer, arguments)
    print_samples(model, tokenizer)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

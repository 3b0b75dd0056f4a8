"""Training: tokenizers' result file for file, ties included, and steps that can be followed."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Peer
from tokenizers import models, pre_tokenizers, trainers

from labkit.errors import ArgumentError, MissingFileError, TextError
from labkit.tokenizer import Tokenizer
from labkit.tokenizer.save import names_of, pairs_of
from labkit.tokenizer.train import count_pieces, read_lines, train, train_steps
from tests.tokenizer.texts import random_texts


def peer_trainer(size: int, minimum: int) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=minimum,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def peer_training(files: list[Path], size: int, minimum: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    peer = Peer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.train([str(file) for file in files], peer_trainer(size, minimum))
    model = json.loads(peer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def corpora(tmp_path: Path) -> dict[str, list[Path]]:
    source = random.Random(41)
    words = ["".join(source.choices("aabcde", k=source.randrange(1, 7))) for _ in range(200)]
    texts = {
        "ties everywhere": "\n".join(" ".join(source.choices(words, k=12)) for _ in range(200)),
        "mixed": "\n".join(random_texts(42, 1500)),
        "runs": "aaaa aaa aaaaaaa ababab\n" * 50 + "    \n\n\t\t\n" * 30,
        "prose": (Path(__file__).read_text("utf-8") + (Path(__file__).parent / "test_exact.py").read_text("utf-8")),
    }
    files = {}
    for name, text in texts.items():
        files[name] = [tmp_path / f"{name}.txt"]
        files[name][0].write_text(text, encoding="utf-8", newline="")
    files["two files"] = files["runs"] + files["prose"]
    return files


@pytest.mark.parametrize("minimum", [1, 2, 5])
@pytest.mark.parametrize("size", [257, 300, 900])
def test_the_same_as_tokenizers(tmp_path: Path, size: int, minimum: int) -> None:
    for name, files in corpora(tmp_path).items():
        vocabulary = train(count_pieces(read_lines(files)), vocabulary_size=size, minimum_count=minimum)
        names, pairs = peer_training(files, size, minimum)
        assert pairs_of(vocabulary) == pairs, name
        assert names_of(vocabulary) == names, name


def test_the_same_as_tokenizers_on_small_random_corpora() -> None:
    """Few letters, so that ties and runs are everywhere."""
    for seed in range(150):
        source = random.Random(seed)
        letters = "ab" if seed % 2 else "abc"
        words = ["".join(source.choices(letters, k=source.randrange(1, 10))) for _ in range(source.randrange(3, 60))]
        lines = [" ".join(words[start : start + 15]) for start in range(0, len(words), 15)]
        size, minimum = 257 + source.randrange(1, 60), source.choice([1, 2])
        peer = Peer(models.BPE())
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        peer.train_from_iterator(lines, peer_trainer(size, minimum))
        vocabulary = train(count_pieces(lines), vocabulary_size=size, minimum_count=minimum)
        assert pairs_of(vocabulary) == [tuple(pair) for pair in json.loads(peer.to_str())["model"]["merges"]], seed


def test_saved_files_load_everywhere(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = corpora(tmp_path)["prose"]
    ours = Tokenizer(train(count_pieces(read_lines(files)), vocabulary_size=500))
    ours.save(tmp_path / "out")
    peer = Peer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    (tmp_path / "out" / "config.json").write_text('{"model_type": "gpt2"}')
    auto = AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    again = Tokenizer.from_folder(tmp_path / "out")
    assert again.notes == ()
    for text in random_texts(43, 300):
        ids = ours.encode(text)
        assert again.encode(text) == ids
        assert peer.encode(text, add_special_tokens=False).ids == ours.encode(text, special_tokens="huggingface")
        assert auto.encode(text, split_special_tokens=True) == ids, text
        assert ours.decode(ids) == text


def count_again(words: Counter[bytes], merges: int) -> list[tuple[bytes, bytes, int]]:
    """The textbook way: count all pairs anew before each merge. Ties by the order in which tokens came about."""
    order = {bytes([byte]): place for place, byte in enumerate(_bytes_in_order())}
    split = {word: [bytes([byte]) for byte in word] for word in words}
    found = []
    for _ in range(merges):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, symbols in split.items():
            for pair in pairwise(symbols):
                pairs[pair] += words[word]
        (left, right), count = min(pairs.items(), key=lambda item: (-item[1], order[item[0][0]], order[item[0][1]]))
        found.append((left, right, count))
        order.setdefault(left + right, len(order))
        for word, symbols in split.items():
            merged: list[bytes] = []
            for symbol in symbols:
                if merged and merged[-1] == left and symbol == right:
                    merged[-1] = left + right
                else:
                    merged.append(symbol)
            split[word] = merged
    return found


def _bytes_in_order() -> list[int]:
    from labkit.tokenizer import BYTE_OF_SYMBOL

    return [byte for _, byte in sorted(BYTE_OF_SYMBOL.items())]


def test_counts_kept_up_to_date_are_the_counts() -> None:
    words = Counter({b"abab": 5, b"ababc": 3, b"aaab": 4, b" aaaa": 2, b"bcbc": 3, "日本日".encode(): 2, b"abcabc": 1})
    steps = list(train_steps(words, vocabulary_size=257 + 12, minimum_count=1))
    expected = count_again(words, len(steps))
    assert [(step.winner.left, step.winner.right, step.winner.count) for step in steps] == expected


def test_steps_show_the_runners_up() -> None:
    steps = list(train_steps({b"ab": 5, b"cd": 4, b"ef": 3, b"gh": 2}, vocabulary_size=261, runners_up=2))
    assert [(step.rank, step.winner.left + step.winner.right, step.winner.count) for step in steps] == [
        (0, b"ab", 5),
        (1, b"cd", 4),
        (2, b"ef", 3),
        (3, b"gh", 2),
    ]
    assert [(other.left + other.right, other.count) for other in steps[0].runners_up] == [(b"cd", 4), (b"ef", 3)]
    assert steps[3].runners_up == ()
    assert [step.token_id for step in steps] == [257, 258, 259, 260]


def test_it_ends_where_nothing_repeats() -> None:
    assert len(train({b"ab": 1, b"cd": 2}, vocabulary_size=1000).made) == 1
    assert len(train({}, vocabulary_size=1000).made) == 0


@pytest.mark.parametrize("size", [0, 256, (1 << 20) + 1])
def test_sizes_out_of_range(size: int) -> None:
    with pytest.raises(ArgumentError, match=r"the vocabulary's size is out of range \(expected 257"):
        train({b"ab": 2}, vocabulary_size=size)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"nowhere\.txt: there is no such file"):
        list(read_lines([tmp_path / "nowhere.txt"]))
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff")
    with pytest.raises(TextError, match=r"bad\.txt: is not UTF-8 \(got 0xff\)"):
        list(read_lines([tmp_path / "bad.txt"]))

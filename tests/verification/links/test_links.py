"""The chain of links: each holds on sound checkpoints, and each break is found at its own link and no earlier."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

import labkit
from labkit.cli.main import run
from labkit.report.links import chain_line
from labkit.tokenizer import Tokenizer
from labkit.verification import links as links_module
from labkit.verification import reference_tensors
from labkit.verification.links import BATTERY, check_links, first_broken, report_links, whole_chain
from labkit.verification.tensor_places import tensor_places
from tests.oracles import random_checkpoint

NAMES = ["file bytes", "header", "tensors", "tokenizer ids"]


@pytest.fixture
def copy(embedded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded, tmp_path / "copy"))


def _verdicts(folder: Path) -> list[str]:
    return [link.verdict for link in check_links(folder)]


def test_every_link_of_the_embedded_checkpoint_holds(embedded: Path) -> None:
    links = whole_chain(labkit.verify(ids=[[5, 6, 7]], tokens=3))
    assert [link.name for link in links] == [*NAMES, "taps", "logits", "tokens"]
    assert [link.verdict for link in links] == ["holds"] * 7
    assert first_broken(links) is None
    assert len(links[0].lines) == 5
    assert links[-1].detail == "3 greedy tokens after 1 prompt"


def test_a_random_checkpoint_without_a_tokenizer(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, seed=0)
    assert _verdicts(tmp_path) == ["holds", "holds", "holds", "not checked"]


def test_shards(tmp_path: Path) -> None:
    model = random_checkpoint.build(seed=0)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    links = check_links(tmp_path)
    assert [link.verdict for link in links][:3] == ["holds"] * 3
    assert "files" in links[1].detail
    next(tmp_path.glob("model-00002-*")).unlink()
    assert [link.verdict for link in check_links(tmp_path)][:3] == ["broken", "not checked", "not checked"]


def test_a_cut_file_breaks_the_header(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    links = check_links(copy)
    assert [link.verdict for link in links] == ["holds", "broken", "not checked", "holds"]
    broken = first_broken(links)
    assert broken is not None
    assert "model.safetensors" in broken.detail


def test_an_empty_folder_breaks_at_its_bytes(tmp_path: Path) -> None:
    assert _verdicts(tmp_path) == ["broken", "not checked", "not checked", "not checked"]


def test_a_reader_that_misreads_breaks_the_tensors(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_tensors, "_identical", lambda a, b: a.dim() != 1)
    link = check_links(copy)[2]
    assert link.verdict == "broken"
    assert "read otherwise than by the official library" in link.detail


def test_the_two_readers_are_compared_bit_for_bit(tmp_path: Path) -> None:
    nan = torch.tensor([0x7FC00001, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    safetensors.torch.save_file({"a": nan, "b": torch.tensor(1.0), "c": torch.zeros(0, 3)}, tmp_path / "x.safetensors")
    parity = reference_tensors.compare_readers([tmp_path / "x.safetensors"])
    assert (parity.tensors, parity.differing) == (3, ())
    assert not reference_tensors._identical(nan, nan.flip(0))
    assert not reference_tensors._identical(torch.zeros(1), -torch.zeros(1))


def test_the_hash_of_all_tensors_is_of_their_contents(tmp_path: Path) -> None:
    one, two = {"a": torch.ones(2), "b": torch.zeros(3)}, {"b": torch.zeros(3), "a": torch.ones(2)}
    hashes = []
    for number, tensors in enumerate((one, two, {**one, "b": torch.tensor([0.0, 0.0, 1.0])})):
        path = tmp_path / f"{number}.safetensors"
        safetensors.torch.save_file(tensors, path, metadata={"n": str(number)})
        hashes.append(reference_tensors.compare_readers([path]).sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_folder_that_cannot_be_loaded_is_told_with_its_chain(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert run(["verify", str(copy), "--ids", "5,6,7"]) == 2
    captured = capsys.readouterr()
    chain, error = captured.err.strip().splitlines()[-2:]
    assert captured.out == ""
    assert chain.startswith("chain: file bytes > header: broken at header")
    assert error.startswith(f"labkit: {weights}")


@pytest.mark.parametrize("left_out", [("tokenizer.json",), ("vocab.json", "merges.txt")])
def test_tokenizers_reads_the_files_itself(
    copy: Path, tmp_path: Path, left_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary that labkit misreads must not be handed to the peer: here labkit reads ids in another order."""
    other = Path(shutil.copytree(copy, tmp_path / "other"))
    (other / "tokenizer.json").unlink()
    ids = json.loads((other / "vocab.json").read_text())
    ids["Ġthe"], ids["Ġand"] = ids["Ġand"], ids["Ġthe"]
    (other / "vocab.json").write_text(json.dumps(ids))
    for name in left_out:
        (copy / name).unlink()
    assert check_links(copy)[3].verdict == "holds"
    misread = Tokenizer.from_folder(other)
    monkeypatch.setattr(links_module.Tokenizer, "from_folder", lambda folder: misread)
    assert check_links(copy)[3].verdict == "broken"


def test_a_tokenizer_that_encodes_otherwise_is_broken(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: right(self, text.lower()))
    link = check_links(copy)[3]
    assert link.verdict == "broken"
    assert "'I' is" in link.detail


def test_a_broken_vocabulary_breaks_the_ids(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    assert _verdicts(copy) == ["holds", "holds", "holds", "broken"]


def test_the_released_file_is_known_by_its_hash(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = check_links(copy)[0]
    nbytes = (copy / "model.safetensors").stat().st_size
    digest = link.lines[0].rsplit(" ", 1)[1]
    monkeypatch.setattr(links_module, "RELEASED_NBYTES", nbytes)
    assert "is as long as GPT-2 small's released file" in check_links(copy)[0].detail
    monkeypatch.setitem(links_module.RELEASED_SHA256, "model.safetensors", digest)
    assert "GPT-2 small's released file" in check_links(copy)[0].lines[0]


def test_a_fault_breaks_the_later_links_only() -> None:
    report = labkit.verify(ids=[[5, 6, 7, 8]], plant="erf-gelu:2", tokens=0)
    taps, logits, tokens = report_links(report)
    assert (taps.verdict, logits.verdict, tokens.verdict) == ("broken", "broken", "not checked")
    assert taps.detail == "h.2.mlp.post is the first of 18 beyond rounding"
    assert chain_line(whole_chain(report)).endswith(f"> taps: broken at taps ({taps.detail})")


def test_the_battery_has_what_tokenizers_trip_over() -> None:
    text = "".join(BATTERY)
    needed = ("'s", "日", "👩‍👩‍👧‍👦", "\x00", "\u3000", "<|endoftext|>", "e\u0301", "\r\n", "²", "العربية")
    assert [part for part in needed if part not in text] == []
    assert "" in BATTERY


def test_places_of_tensors_are_their_bytes(embedded: Path) -> None:
    place = tensor_places(embedded, ["h.0.attn.c_attn.bias", "no.such.tensor"])
    assert list(place) == ["h.0.attn.c_attn.bias"]
    found = place["h.0.attn.c_attn.bias"]
    data = (embedded / found.file).read_bytes()[found.begin : found.end]
    stored = safetensors.torch.load_file(embedded / "model.safetensors")[found.name]
    assert torch.equal(torch.frombuffer(bytearray(data), dtype=torch.float32), stored)


def test_the_command_prints_the_chain(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    assert run(["verify", str(copy), "--ids", "5,6", "--tokens", "2"]) == 0
    assert "chain    file bytes > header > tensors > tokenizer ids > taps" in capsys.readouterr().out
    (copy / "tokenizer.json").write_text("{}")
    assert run(["verify", str(copy), "--ids", "5,6", "--tokens", "0", "--json", "-"]) == 1
    chain = json.loads(capsys.readouterr().out)["chain"]
    assert [link["name"] for link in chain if link["verdict"] == "broken"] == ["tokenizer ids"]

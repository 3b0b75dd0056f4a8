"""Reading snapshot folders: bit for bit what transformers wrote, or one line that says why not."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from labkit.checkpoint import add_statistics, read_checkpoint
from labkit.errors import CheckpointError, ConfigError, FormatError, LabkitError, MissingFileError, UnknownNameError
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.storage import open_snapshot, save_safetensors
from tests.oracles import random_checkpoint

IDS = [[5, 17, 3, 41, 42, 7, 25, 11]]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    random_checkpoint.write(folder)
    return folder


@pytest.fixture
def folder(snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(snapshot, tmp_path / "copy"))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    with open_snapshot(folder) as opened:
        return {name: each.clone() for name, each in opened.items()}


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_safetensors(tensors, folder / "model.safetensors", metadata={"format": "pt"}, shared="copy")


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("mode", ["mapped", "owned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_what_transformers_wrote_is_read_bit_for_bit(mode: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = random_checkpoint.write(tmp_path, dtype=dtype, tie_word_embeddings=False)
    checkpoint = read_checkpoint(tmp_path, mode=mode)
    expected = {name.removeprefix("transformer."): each for name, each in reference.state_dict().items()}
    assert set(checkpoint.parameters) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint.parameters.items())
    with torch.no_grad():
        logits = reference.float()(torch.tensor(IDS)).logits
    assert (load_gpt2(tmp_path, mode=mode)(IDS) - logits).abs().max() < 1e-4


CLASSES: list[tuple[Any, dict[str, Any], str]] = [
    (transformers.GPT2Model, {}, ""),
    (
        transformers.GPT2DoubleHeadsModel,
        {"num_labels": 1},
        "other head: 2 tensors left out (multiple_choice_head.summary.",
    ),
    (
        transformers.GPT2ForSequenceClassification,
        {"num_labels": 3, "pad_token_id": 0},
        "other head: 1 tensor left out (score.weight)",
    ),
    (transformers.GPT2ForTokenClassification, {"num_labels": 3}, "other head: 2 tensors left out (classifier."),
    (transformers.GPT2ForQuestionAnswering, {}, "other head: 2 tensors left out (qa_outputs."),
]


@pytest.mark.parametrize(("kind", "fields", "said"), CLASSES, ids=lambda each: getattr(each, "__name__", ""))
def test_other_classes_of_transformers_load_their_gpt2(
    kind: Any, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = transformers.GPT2Config(**random_checkpoint.TINY, **fields)
    peer = kind(config).eval()
    random_checkpoint.redraw(peer, seed=3)
    peer.save_pretrained(tmp_path)
    body = peer if kind is transformers.GPT2Model else peer.transformer
    with torch.no_grad():
        expected = body(torch.tensor(IDS)).last_hidden_state  # [batch, pos, n_embd]
    model = load_gpt2(tmp_path)
    assert (model.run(IDS, taps="ln_f").taps["ln_f"] - expected).abs().max() < 1e-4
    assert said in str(model.load_report)


def test_a_decoder_with_cross_attention_is_refused_and_loads_without_it(tmp_path: Path) -> None:
    peer = random_checkpoint.write(tmp_path, add_cross_attention=True)
    with pytest.raises(ConfigError, match="add_cross_attention is set"):
        load_gpt2(tmp_path)
    edit_config(tmp_path, add_cross_attention=False)
    model = load_gpt2(tmp_path)
    with torch.no_grad():
        assert (model(IDS) - peer(torch.tensor(IDS)).logits).abs().max() < 1e-4
    assert "cross-attention: 24 tensors left out" in str(model.load_report)


def test_shards_are_read_as_one(snapshot: Path, tmp_path: Path) -> None:
    random_checkpoint.build().save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(load_gpt2(tmp_path)(IDS), load_gpt2(snapshot)(IDS))
    shards = {row.shard for row in read_checkpoint(tmp_path).report.rows}
    assert len(shards) == len(list(tmp_path.glob("*.safetensors")))


@pytest.mark.parametrize("spaces", [1, 3, 7])
def test_tensors_that_are_not_aligned_compute_the_same(spaces: int, folder: Path, snapshot: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    longer = (length + spaces).to_bytes(8, "little")
    path.write_bytes(longer + raw[8 : 8 + length] + b" " * spaces + raw[8 + length :])
    model = load_gpt2(folder)  # as in the released file, whose data starts at an odd byte
    assert model.parameters_by_name["wte.weight"].data_ptr() % 4 == spaces % 4
    assert torch.equal(model(IDS), load_gpt2(snapshot)(IDS))


def test_a_file_alone_is_read_with_the_config_beside_it(snapshot: Path) -> None:
    assert torch.equal(load_gpt2(snapshot / "model.safetensors")(IDS), load_gpt2(snapshot)(IDS))


FAULTS: dict[str, Any] = {
    "c_attn bias dropped": lambda p: {**p, "h.1.attn.c_attn.bias": torch.zeros_like(p["h.1.attn.c_attn.bias"])},
    "ln_f bias dropped": lambda p: {**p, "ln_f.bias": torch.zeros_like(p["ln_f.bias"])},
    "norms swapped": lambda p: {**p, "h.0.ln_1.weight": p["h.0.ln_2.weight"], "h.0.ln_2.weight": p["h.0.ln_1.weight"]},
    "norm biases swapped": lambda p: {**p, "h.2.ln_1.bias": p["h.2.ln_2.bias"], "h.2.ln_2.bias": p["h.2.ln_1.bias"]},
    "square c_proj transposed": lambda p: {**p, "h.2.attn.c_proj.weight": p["h.2.attn.c_proj.weight"].T},
    "blocks exchanged": lambda p: {
        name.replace("h.0.", "h.x.").replace("h.1.", "h.0.").replace("h.x.", "h.1."): t for name, t in p.items()
    },
    "positions off by one": lambda p: {**p, "wpe.weight": p["wpe.weight"].roll(1, 0)},
    "rows of wte moved": lambda p: {**p, "wte.weight": p["wte.weight"].roll(1, 0)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_loader_fault_would_move_the_logits(fault: str, snapshot: Path) -> None:
    right = load_gpt2(snapshot)
    wrong = GPT2(right.config, FAULTS[fault](dict(right.parameters_by_name)))
    assert (wrong(IDS) - right(IDS)).abs().max() > 1e-2


def test_the_report_covers_every_byte_of_the_data(snapshot: Path) -> None:
    report = read_checkpoint(snapshot).report
    rows = sorted(report.rows, key=lambda row: row.begin or 0)
    assert rows[-1].end == (snapshot / "model.safetensors").stat().st_size
    assert all(a.end == b.begin for a, b in itertools.pairwise(rows))
    assert len(report.parameters) == len(rows)
    assert report.dtypes == {"F32": 40}


def test_statistics_are_those_of_the_values(folder: Path) -> None:
    tensors = tensors_of(folder)
    tensors["transformer.ln_f.bias"][3] = float("nan")
    rewrite(folder, tensors)
    for row in add_statistics(read_checkpoint(folder).report).rows:
        values = tensors[row.name].double()
        finite = values[values.isfinite()]
        assert row.statistics is not None
        assert row.statistics.nonfinite == values.numel() - finite.numel()
        assert row.statistics.minimum == finite.min()
        assert row.statistics.mean == pytest.approx(float(finite.mean()), rel=1e-9, abs=1e-12)
        assert row.statistics.std == pytest.approx(float(finite.std(correction=0)), rel=1e-6)


def test_without_a_config_sizes_come_from_shapes(tmp_path: Path) -> None:
    reference = random_checkpoint.write(tmp_path, n_embd=128, n_head=2, n_inner=40)
    (tmp_path / "config.json").rename(tmp_path / "other.json")
    (tmp_path / "generation_config.json").unlink()
    model = load_gpt2(tmp_path)
    with torch.no_grad():
        expected = reference(torch.tensor(IDS)).logits
    assert (model(IDS) - expected).abs().max() < 1e-4
    assert "n_head = 2 from an assumed head_dim of 64" in str(model.load_report)
    assert load_gpt2(tmp_path, config=tmp_path / "other.json").config == model.config.__class__(
        **{**vars(model.config), "n_inner": 40}
    )
    assert load_gpt2(tmp_path, config={**vars(model.config), "n_head": 4}).config.n_head == 4


def test_without_a_config_heads_that_cannot_be_told_are_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="n_embd = 24 does not divide into heads of 64"):
        read_checkpoint(folder)


def test_a_pickle_is_never_opened(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04not a pickle at all")
    assert load_gpt2(folder).config.n_layer == 3
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: the weights are there only as a pickle.*labkit convert"
    ):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"model_type": "llama"}, ConfigError, "model_type is not GPT-2's"),
        ({"activation_function": "gelu_nwe"}, ConfigError, "did you mean 'gelu_new'"),
        ({"activation_function": None}, ConfigError, "no activation_function named None"),
        ({"layer_norm_epsilon": 0}, ConfigError, "layer_norm_epsilon is out of range"),
        ({"n_head": 5}, ConfigError, "n_embd = 24 does not divide into n_head = 5 heads"),
        ({"n_head": 0}, ConfigError, "n_head is not a size"),
        ({"n_layer": "3"}, ConfigError, "n_layer is not a size"),
        ({"n_layer": 10**12}, ConfigError, "n_layer is not a size (expected 1 to 10,000, got 1000000000000)"),
        ({"vocab_size": 2**31}, ConfigError, "vocab_size is not a size"),
        ({"n_inner": 0}, ConfigError, "n_inner is not a size"),
        ({"scale_attn_weights": 1}, ConfigError, "scale_attn_weights is not a flag"),
        ({"tie_word_embeddings": None}, ConfigError, "tie_word_embeddings is not a flag"),
        ({"add_cross_attention": True}, ConfigError, "add_cross_attention is set"),
        ({"pruned_heads": {"0": [1]}}, ConfigError, "pruned_heads is set"),
        ({"quantization_config": {"bits": 4}}, ConfigError, "quantization_config is set"),
        ({"n_inner": 95}, CheckpointError, "n_inner = 95"),
        ({"n_positions": 33}, CheckpointError, "correct n_positions in config.json to 32"),
        ({"vocab_size": 98}, CheckpointError, "correct vocab_size in config.json to 97"),
        ({"n_embd": 48}, CheckpointError, "n_embd = 48"),
        ({"n_layer": 4}, CheckpointError, "block h.3. is missing while n_layer is 4"),
        (
            {"tie_word_embeddings": False},
            CheckpointError,
            "lm_head.weight is missing while tie_word_embeddings is false",
        ),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(
    fields: dict[str, Any], error: type[LabkitError], said: str, folder: Path
) -> None:
    edit_config(folder, **fields)
    with pytest.raises(error) as raised:
        read_checkpoint(folder)
    assert said in str(raised.value)


def test_old_and_shared_keys_are_understood_and_said(folder: Path) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for old, new in (("n_ctx", "n_positions"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")):
        fields[old] = fields.pop(new)
    del fields["layer_norm_epsilon"]
    del fields["dtype"]
    fields["torch_dtype"] = "float16"
    path.write_text(json.dumps(fields))
    checkpoint = read_checkpoint(folder)
    assert "config.json states torch_dtype 'float16', the weights are stored as F32" in str(checkpoint.report)
    assert (checkpoint.config.n_positions, checkpoint.config.n_layer, checkpoint.config.n_head) == (32, 3, 3)
    said = str(checkpoint.report)
    assert "n_positions is not stated: 32 is taken from n_ctx" in said
    assert "layer_norm_epsilon is not stated: 1e-05, the default of GPT-2, is used" in said


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"n_layer": 1e}', "\xff", '{"n_layer": 3, "n_layer": 2}', "[" * 100_000]
)
def test_a_broken_config_is_one_line(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json: not "):
        read_checkpoint(folder)


def test_what_is_not_there_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="nowhere: no such folder"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match=r"config\.json: a file, not a folder"):
        read_checkpoint(folder / "config.json")
    (folder / "model.safetensors").unlink()
    with pytest.raises(MissingFileError, match="no checkpoint here"):
        read_checkpoint(folder)
    with pytest.raises(UnknownNameError, match="no mode named 'copied'"):
        read_checkpoint(folder, mode="copied")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["mapped", "owned"])
def test_a_truncated_file_is_refused_before_anything_is_read(mode: Any, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"model\.safetensors"):
        read_checkpoint(folder, mode=mode)


def test_nothing_is_converted_before_everything_is_checked(folder: Path) -> None:
    tensors = tensors_of(folder)
    tensors["transformer.wte.weight"] = torch.zeros(96, 24)  # the last in the file, by name
    rewrite(folder, tensors)
    converted: list[str] = []
    with pytest.raises(CheckpointError, match=r"wte\.weight"):
        read_checkpoint(folder, convert=lambda name, tensor: converted.append(name) or tensor)  # type: ignore[func-returns-value]
    assert not converted


def test_a_head_beside_a_tied_wte(folder: Path) -> None:
    tensors = tensors_of(folder)
    rewrite(folder, {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()})
    report = read_checkpoint(folder).report
    assert [(row.name, row.use) for row in report.left_out] == [("lm_head.weight", "tied head")]
    head = tensors["transformer.wte.weight"].clone()
    head[41, 3] += 1e-6
    rewrite(folder, {**tensors, "lm_head.weight": head})
    with pytest.raises(
        CheckpointError, match=r"stored and differ \(got 1 of 97 rows differ, the first is row 41\).*untie=True"
    ):
        read_checkpoint(folder)
    model = load_gpt2(folder, untie=True)
    assert torch.equal(model.parameters_by_name["lm_head.weight"], head)
    rewrite(folder, {**tensors, "lm_head.weight": head.double()})
    with pytest.raises(CheckpointError, match="stored and differ"):
        read_checkpoint(folder)


def test_ids_without_a_token_are_named(folder: Path) -> None:
    words = {f"w{i}": i for i in range(97)}
    (folder / "vocab.json").write_text(json.dumps({w: i for w, i in words.items() if i not in (40, 90, 91)}))
    assert "wte.weight has 97 rows, but vocab.json gives no token to ids 40, 90 to 91" in str(
        read_checkpoint(folder).report
    )
    (folder / "vocab.json").write_text(json.dumps({**words, "<pad>": 97}))
    assert "vocab.json gives tokens to ids 97, but wte.weight has 97 rows" in str(read_checkpoint(folder).report)
    (folder / "vocab.json").write_text(json.dumps(words))
    assert "vocab.json" not in str(read_checkpoint(folder).report)
    (folder / "vocab.json").write_text("{")
    assert "the tokenizer's files cannot be read" in str(read_checkpoint(folder).report)


def test_mixed_dtypes_load_and_rounding_is_counted(folder: Path) -> None:
    tensors = tensors_of(folder)
    for name in tensors:
        kind = torch.bfloat16 if "wte" in name else torch.float64 if "ln_" in name else torch.float16
        tensors[name] = tensors[name].to(kind)
    tensors["transformer.ln_f.bias"][0] = 1 / 3
    rewrite(folder, tensors)
    model = load_gpt2(folder)
    assert "stored as F16, F64, BF16" in str(model.load_report).replace("F64, F16", "F16, F64")
    assert "1 of 336 values stored as float64 were rounded to float32" in str(model.load_report)
    assert torch.equal(model.parameters_by_name["wte.weight"], tensors["transformer.wte.weight"].float())
    half = load_gpt2(folder, dtype=torch.bfloat16)
    weight = half.parameters_by_name["h.0.mlp.c_fc.weight"]
    assert weight.shape == (24, 96)
    assert weight.t().is_contiguous()


def test_an_option_that_cannot_be_honoured_is_refused(folder: Path) -> None:
    with pytest.raises(
        LabkitError, match=r"dtype: not a dtype to compute in \(expected float32, float64, bfloat16, float16"
    ):
        load_gpt2(folder, dtype=torch.int8)
    with pytest.raises(LabkitError, match="device: no such device here"):
        load_gpt2(folder, device="cuda:99" if torch.cuda.is_available() else "cuda")

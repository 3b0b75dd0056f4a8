"""Writing snapshots: transformers loads each with nothing missing or unexpected, and round trips keep every bit."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from labkit.checkpoint import read_checkpoint
from labkit.checkpoint.export import COMPANIONS, save_snapshot
from labkit.checkpoint.foreign import read_named, read_pickled
from labkit.checkpoint.layouts import MAPS, name_map
from labkit.cli.checkpoint import parse_nbytes
from labkit.cli.main import run
from labkit.errors import ArgumentError, CheckpointError, ConfigError, FileAccessError, LabkitError, MissingFileError
from labkit.load import load_gpt2
from tests.oracles import random_checkpoint

IDS = [[5, 17, 3, 41, 42, 7, 25, 11]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    random_checkpoint.write(folder)
    for name in COMPANIONS:
        if name.startswith(("vocab", "merges")):
            (folder / name).write_text("{}" if name.endswith("json") else "#version: 0.2\n")
    return folder


def transformers_loads(folder: Path, dtype: torch.dtype) -> GPT2LMHeadModel:
    model, told = GPT2LMHeadModel.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    return model.eval()


def logits(model: GPT2LMHeadModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits


def save(source: Path, target: Path, **options: Any) -> Any:
    checkpoint = read_checkpoint(source)
    return save_snapshot(checkpoint.config, checkpoint.parameters, target, companions=source, **options)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard_nbytes", [None, 20_000])
def test_transformers_loads_what_is_written(
    dtype: torch.dtype | None, shard_nbytes: int | None, source: Path, tmp_path: Path
) -> None:
    export = save(source, tmp_path / "new", dtype=dtype, shard_nbytes=shard_nbytes)
    model = transformers_loads(tmp_path / "new", torch.float32)
    expected = transformers_loads(source, torch.float32).to(dtype or torch.float32).float()
    assert torch.equal(logits(model), logits(expected))
    assert ("model.safetensors.index.json" in export.files) == (shard_nbytes is not None)
    assert {"vocab.json", "merges.txt", "generation_config.json"} <= set(export.files)
    stored = json.loads((tmp_path / "new" / "config.json").read_text())
    assert stored["dtype"] == str(dtype or torch.float32).removeprefix("torch.")
    assert "torch_dtype" not in stored
    again = transformers_loads(tmp_path / "new", dtype or torch.float32)
    assert again.transformer.wte.weight.dtype == (dtype or torch.float32)


def test_a_round_trip_keeps_every_bit(source: Path, tmp_path: Path) -> None:
    save(source, tmp_path / "f64", dtype=torch.float64)
    save(tmp_path / "f64", tmp_path / "f32", dtype=torch.float32, shard_nbytes=30_000)
    save(tmp_path / "f32", tmp_path / "again")
    first, last = (read_checkpoint(folder) for folder in (source, tmp_path / "again"))
    assert first.config == last.config
    assert all(torch.equal(tensor, last.parameters[name]) for name, tensor in first.parameters.items())


def test_the_linear_layout_reads_back(source: Path, tmp_path: Path) -> None:
    save(source, tmp_path / "linear", layout="linear")
    with pytest.raises(
        CheckpointError, match=r"nn\.Linear's layout .*`labkit convert FOLDER NEW_FOLDER --names linear` turns it"
    ):
        read_checkpoint(tmp_path / "linear")
    again, first = read_named(tmp_path / "linear", MAPS["linear"]), read_checkpoint(source)
    assert all(torch.equal(tensor, again.parameters[name]) for name, tensor in first.parameters.items())
    assert {row.transposed for row in again.report.rows if row.name.endswith("c_proj.weight")} == {True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_labkits_own_is_written_by_value(dtype: torch.dtype, source: Path, tmp_path: Path) -> None:
    model = load_gpt2(source, dtype=dtype)  # bfloat16 matrices lie [out, in] in memory
    save_snapshot(model.config, model.parameters_by_name, tmp_path / "new")
    again = load_gpt2(tmp_path / "new", dtype=dtype)
    assert all(torch.equal(each, again.parameters_by_name[name]) for name, each in model.parameters_by_name.items())
    peer = transformers_loads(tmp_path / "new", dtype).float()
    wide = load_gpt2(tmp_path / "new")
    assert (wide(IDS) - logits(peer)).abs().max() < 1e-4


def test_an_untied_head_is_written(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path / "a", tie_word_embeddings=False)
    save(tmp_path / "a", tmp_path / "b")
    assert torch.equal(
        logits(transformers_loads(tmp_path / "b", torch.float32)),
        logits(transformers_loads(tmp_path / "a", torch.float32)),
    )


def test_values_beyond_the_dtype_are_refused_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(source)
    large = dict(checkpoint.parameters) | {"ln_f.weight": torch.full((24,), 7e4)}
    with pytest.raises(CheckpointError, match=r"ln_f\.weight: 24 of 24 values are beyond float16"):
        save_snapshot(checkpoint.config, large, tmp_path / "new", dtype=torch.float16)
    assert not list(tmp_path.iterdir())


def test_a_failed_check_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def refuse(draft: Path) -> tuple[str, ...]:
        assert (draft / "config.json").is_file()
        assert not (tmp_path / "new").exists()
        raise CheckpointError("the check says no")

    with pytest.raises(CheckpointError, match="the check says no"):
        save(source, tmp_path / "new", check=refuse)
    assert not list(tmp_path.iterdir())


def test_a_copy_that_reads_back_otherwise_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.checkpoint import export

    written = export.save_safetensors

    def one_bit_off(tensors: Any, path: Any, **options: Any) -> None:
        written({**tensors, "transformer.ln_f.bias": tensors["transformer.ln_f.bias"] + 1e-6}, path, **options)

    monkeypatch.setattr(export, "save_safetensors", one_bit_off)
    with pytest.raises(CheckpointError, match=r"ln_f\.bias: the tensor reads back otherwise"):
        save(source, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_write_is_said(source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ArgumentError, match="the folder is already there"):
        save(source, tmp_path / "there")
    with pytest.raises(MissingFileError, match="no such folder"):
        save(source, tmp_path / "no" / "where")
    checkpoint = read_checkpoint(source)
    with pytest.raises(CheckpointError, match=r"not those of the config \(got ln_f\.bias\)"):
        save_snapshot(
            checkpoint.config, {n: t for n, t in checkpoint.parameters.items() if n != "ln_f.bias"}, tmp_path / "new"
        )


def test_a_full_disk_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.checkpoint import export

    def full(path: Path, fields: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, "_write_json", full)
    with pytest.raises(FileAccessError, match="cannot write: No space left on device; nothing was left"):
        save(source, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def linear_state(tmp_path: Path, **fields: Any) -> tuple[GPT2LMHeadModel, dict[str, torch.Tensor]]:
    """The random model, and its state dict with the four matrices as nn.Linear has them."""
    model = random_checkpoint.build(**fields)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    for name in state:
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            state[name] = state[name].t().contiguous()
    return model, state


SIZES = {"n_layer": 3, "n_head": 3, "n_embd": 24, "block_size": 32, "vocab_size": 97, "dropout": 0.0}


def test_a_nanogpt_checkpoint_converts(tmp_path: Path) -> None:
    model, state = linear_state(tmp_path, activation_function="gelu")
    state |= {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(3)}
    compiled = {f"_orig_mod.{name}": each for name, each in state.items()}
    torch.save({"model": compiled, "model_args": {**SIZES, "bias": True}, "iter_num": 7}, tmp_path / "ckpt.pt")
    checkpoint = read_named(tmp_path / "ckpt.pt", MAPS["nanogpt"], allow_pickle=True)
    save_snapshot(checkpoint.config, checkpoint.parameters, tmp_path / "new")
    assert checkpoint.config.tie_word_embeddings
    assert (logits(transformers_loads(tmp_path / "new", torch.float32)) - logits(model)).abs().max() < 1e-5
    said = str(checkpoint.report)
    assert "activation_function is gelu, as nanogpt computes" in said
    with pytest.raises(CheckpointError, match=r"there only as a pickle.*--allow-pickle"):
        read_named(tmp_path / "ckpt.pt", MAPS["nanogpt"])


def test_a_nanogpt_checkpoint_without_biases_gets_zeros(tmp_path: Path) -> None:
    model, state = linear_state(tmp_path, activation_function="gelu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    bare = {name: each for name, each in state.items() if not name.endswith(".bias")}
    torch.save({"model": bare, "model_args": {**SIZES, "bias": False}}, tmp_path / "ckpt.pt")
    checkpoint = read_named(tmp_path / "ckpt.pt", MAPS["nanogpt"], allow_pickle=True)
    assert "19 biases are not stored and were set to zero" in str(checkpoint.report)
    save_snapshot(checkpoint.config, checkpoint.parameters, tmp_path / "new")
    assert (logits(transformers_loads(tmp_path / "new", torch.float32)) - logits(model)).abs().max() < 1e-5
    torch.save(bare, tmp_path / "bare.pt")
    with pytest.raises(
        CheckpointError, match=r"no tensor fills this parameter \(expected transformer\.h\.0\.ln_1\.bias"
    ):
        read_named(tmp_path / "bare.pt", MAPS["nanogpt"], config={"n_head": 3}, allow_pickle=True)


def test_a_mingpt_checkpoint_of_2020_converts(tmp_path: Path) -> None:
    model, state = linear_state(tmp_path, activation_function="gelu", tie_word_embeddings=False)
    old = {"tok_emb.weight": state["transformer.wte.weight"], "pos_emb": state["transformer.wpe.weight"][None]}
    old |= {"head.weight": state["lm_head.weight"]}
    old |= {f"ln_f.{part}": state[f"transformer.ln_f.{part}"] for part in ("weight", "bias")}
    for i in range(3):
        h, b = f"transformer.h.{i}.", f"blocks.{i}."
        for part in ("weight", "bias"):
            thirds = state[f"{h}attn.c_attn.{part}"].chunk(3)
            for name, third in zip(("query", "key", "value"), thirds, strict=True):
                old[f"{b}attn.{name}.{part}"] = third.clone()
            for new, name in (
                ("ln_1", "ln1"),
                ("attn.c_proj", "attn.proj"),
                ("ln_2", "ln2"),
                ("mlp.c_fc", "mlp.0"),
                ("mlp.c_proj", "mlp.2"),
            ):
                old[f"{b}{name}.{part}"] = state[f"{h}{new}.{part}"]
        old[f"{b}attn.mask"] = torch.ones(1, 1, 32, 32)
    torch.save(old, tmp_path / "old.pt")
    checkpoint = read_named(tmp_path / "old.pt", MAPS["mingpt-2020"], config={"n_head": 3}, allow_pickle=True)
    assert not checkpoint.config.tie_word_embeddings
    save_snapshot(checkpoint.config, checkpoint.parameters, tmp_path / "new")
    assert (logits(transformers_loads(tmp_path / "new", torch.float32)) - logits(model)).abs().max() < 1e-5
    with pytest.raises(ConfigError, match="n_head is stated nowhere"):
        read_named(tmp_path / "old.pt", MAPS["mingpt-2020"], allow_pickle=True)
    torch.save({**old, "blocks.0.attn.extra": torch.ones(1)}, tmp_path / "extra.pt")
    with pytest.raises(CheckpointError, match=r"'blocks\.0\.attn\.extra': the name map mingpt-2020 has no parameter"):
        read_named(tmp_path / "extra.pt", MAPS["mingpt-2020"], config={"n_head": 3}, allow_pickle=True)
    torch.save({**old, "blocks.0.mlp.0.weight": old["blocks.0.mlp.0.weight"].T}, tmp_path / "turned.pt")
    with pytest.raises(CheckpointError, match="the shape is wrong"):
        read_named(tmp_path / "turned.pt", MAPS["mingpt-2020"], config={"n_head": 3, "n_inner": 96}, allow_pickle=True)


def test_a_map_of_ones_own(source: Path, tmp_path: Path) -> None:
    names = {name: name.replace("h.{i}.", "layers.{i}.") for name in MAPS["mingpt"].sources if name != "lm_head.weight"}
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"layout": "conv1d", "names": names}))
    first = read_checkpoint(source)
    tensors = {
        name.replace("h.", "layers.") if name.startswith("h.") else name: t for name, t in first.parameters.items()
    }
    torch.save(tensors, tmp_path / "own.pt")
    again = read_named(tmp_path / "own.pt", name_map(str(path)), config={"n_head": 3}, allow_pickle=True)
    assert all(torch.equal(tensor, again.parameters[name]) for name, tensor in first.parameters.items())
    for text, said in (("{", "not a name map"), ('{"layout": "diagonal", "names": {}}', "the layout is unknown")):
        path.write_text(text)
        with pytest.raises(ArgumentError, match=said):
            name_map(str(path))
    path.write_text(json.dumps({"layout": "linear", "names": {"h.{i}.ln1.weight": "x"}}))
    with pytest.raises(LabkitError, match=r"no parameter named 'h\.\{i\}\.ln1\.weight'"):
        name_map(str(path))


WRONG_MAPS: tuple[tuple[str, str], ...] = (
    ('{"layout": "linear", "names": {"wte.weight": [1, 2]}}', r"Expected `str`, got `int` - at `\$\.names\[\.\.\.\]"),
    ('{"layout": "linear", "names": {"wte.weight": []}}', "length >= 1"),
    ('{"layout": "linear", "names": {"wte.weight": null}}', "got `null`"),
    ('{"layout": "linear", "names": ["wte.weight"]}', r"got `array` - at `\$\.names"),
    ('{"layout": "linear", "names": {}, "left_out": [1]}', r"got `int` - at `\$\.left_out"),
    ('{"layout": "linear", "names": {}, "left_out": "abc"}', r"got `str` - at `\$\.left_out"),
    ('{"layout": "linear", "names": {}, "activation_function": 1}', r"at `\$\.activation_function"),
    ('{"layout": ["linear"], "names": {}}', r"at `\$\.layout"),
    ('{"names": {}}', "missing required field `layout`"),
    ("[]", "Expected `object`"),
    ("[" * 100_000, "nests too deep"),
    ("1" * 5000, "5000 characters"),
)


@pytest.mark.parametrize(("text", "told"), WRONG_MAPS)
def test_a_name_map_of_another_kind_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=f"map.json: not a name map: .*{told}"):
        name_map(str(path))


@pytest.mark.parametrize("path", ["none.json", "/dev/zero/../none.json", "a" * 300 + ".json"])
def test_a_name_map_that_is_no_file(path: str) -> None:
    with pytest.raises(LabkitError, match="name map"):
        name_map(path)


class Evil:
    """What a pickle can do when it is simply loaded."""

    def __reduce__(self) -> Any:
        return (print, ("this ran",))


def test_a_pickle_of_transformers_converts_and_a_bad_one_does_not(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((source / "config.json").read_text())
    state = random_checkpoint.build().state_dict()
    torch.save(state, pickled / "pytorch_model.bin")
    first, again = read_checkpoint(source), read_pickled(pickled)
    assert all(torch.equal(tensor, again.parameters[name]) for name, tensor in first.parameters.items())
    torch.save({**state, "evil": Evil()}, pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than tensors and plain values"):
        read_pickled(pickled)
    assert "this ran" not in capsys.readouterr().out
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04 garbage")
    with pytest.raises(CheckpointError, match="or is broken"):
        read_pickled(pickled)
    torch.save({"a": torch.ones(1), "epoch": 3}, pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"not a state dict: there is more than tensors in it.*got epoch"):
        read_pickled(pickled)


def test_the_command_converts_and_checks_itself(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    random_checkpoint.write(plain)
    assert run(["convert", str(plain), str(tmp_path / "new"), "--dtype", "bf16", "--shard-size", "20KB"]) == 0
    assert "reloaded logits equal; transformers agrees at every stage over 24 ids" in capsys.readouterr().out
    assert transformers_loads(tmp_path / "new", torch.bfloat16).dtype == torch.bfloat16
    assert run(["convert", str(plain), str(tmp_path / "new")]) == 2
    assert "the folder is already there" in capsys.readouterr().err
    for options in (["--dtype", "f8"], ["--layout", "tf"], ["--shard-size", "lots"], ["--names", "nanogtp"]):
        assert run(["convert", str(plain), str(tmp_path / "other"), *options]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    linear = str(tmp_path / "linear")
    assert run(["convert", str(plain), linear, "--layout", "linear"]) == 0
    assert (
        f"compared, but not run, because only the layout hf can be; `labkit convert {linear}" in capsys.readouterr().err
    )
    assert run(["convert", linear, str(tmp_path / "back"), "--names", "linear"]) == 0
    assert torch.equal(
        load_gpt2(tmp_path / "new", dtype=torch.bfloat16)(IDS), load_gpt2(plain, dtype=torch.bfloat16)(IDS)
    )


@pytest.mark.parametrize(
    ("text", "nbytes"), [("200MB", 200_000_000), ("1 KiB", 1024), ("7", 7), ("1.5gb", 1_500_000_000)]
)
def test_sizes_are_read_in_bytes(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes

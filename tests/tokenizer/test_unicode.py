"""The frozen tables: what the two reference tokenizers say, and not what Python's own modules say."""

import pytest

from labkit.tokenizer import probe_unicode, split, unicode16
from labkit.tokenizer.classes import COUNTS, OTHER, class_table, parse_ranges, stand_in
from labkit.tokenizer.probe_unicode import to_ranges


def test_the_committed_tables_agree_with_tiktoken_and_tokenizers(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe_unicode.main([]) == 0
    assert "agrees" in capsys.readouterr().out


def test_a_changed_table_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {name: getattr(unicode16, name) for name in COUNTS}
    shorter = to_ranges(point for low, high in parse_ranges(tables["SPACES"]) for point in range(low, high + 1))[1:]
    monkeypatch.setattr(probe_unicode, "probe", lambda: tables | {"SPACES": probe_unicode.render_ranges(shorter)})
    assert probe_unicode.main([]) == 1
    assert "differs" in capsys.readouterr().out


def test_peers_that_disagree_stop_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_unicode, "ask_tiktoken", lambda pattern: {65, 66})
    monkeypatch.setattr(probe_unicode, "ask_tokenizers", lambda pattern: {65})
    with pytest.raises(SystemExit, match=r"LETTERS: tiktoken and tokenizers differ at 1 code points, first U\+0042"):
        probe_unicode.probe()


def test_counts() -> None:
    for name, count in COUNTS.items():
        assert sum(high - low + 1 for low, high in parse_ranges(getattr(unicode16, name))) == count


def test_a_damaged_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class_table.cache_clear()
    monkeypatch.setattr(unicode16, "NUMBERS", "30-39")
    with pytest.raises(AssertionError, match=r"unicode16\.py is damaged"):
        class_table()
    monkeypatch.undo()
    class_table.cache_clear()
    assert class_table()[ord("a")] == 0


@pytest.mark.parametrize("point", [0x1C, 0x1D, 0x1E, 0x1F, 0x180E, 0x200B, 0xFEFF, 0xA7CE, 0x0378])
def test_what_other_tables_count_otherwise(point: int) -> None:
    """Separators that Python calls white space, and letters that only later versions of Unicode have."""
    assert class_table()[point] == OTHER
    assert [piece.text for piece in split(chr(point) + "'s")] == [chr(point) + "'", "s"]


def test_stand_ins_keep_length_and_class() -> None:
    text = "".join(map(chr, [*range(0x80), 0xA0, 0x3000, 0xE9, 0x65E5, 0x1F600, 0xB2, 0x10FFFF]))
    stand = stand_in(text)
    assert len(stand) == len(text)
    assert stand.isascii()
    assert stand[:0x80] == text[:0x80]
    assert [class_table()[ord(a)] for a in stand] == [class_table()[ord(b)] for b in text]

"""One chain from the file's bytes to the tokens: each link checked by itself, the first broken one named.

file bytes -> header -> tensors -> tokenizer ids   (of the folder: ``check_links``)
-> taps -> logits -> tokens                        (of a verification: ``report_links``)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.errors import LabkitError, MissingFileError
from labkit.hub.released import RELEASED_NBYTES, RELEASED_SHA256, sha256_of
from labkit.load import folder_of
from labkit.outside import path_of, read_regular
from labkit.storage import open_snapshot
from labkit.storage.index import INDEX_NAME, SINGLE_NAME, parse_index
from labkit.tokenizer import Tokenizer
from labkit.tokenizer.parity import compare_with_peer, tokenizers_encode_files
from labkit.verification.reference_tensors import compare_readers
from labkit.verification.report import Report
from labkit.words import counted

Found = tuple[str, tuple[str, ...]]
"""What a check found: the detail, and further lines."""

Check = Callable[[Path], Found | None]
"""Checks one link of a folder; None where the folder has nothing to check."""

LinkVerdict = Literal["holds", "broken", "not checked"]

BATTERY = (
    "Hello, world! It's 3 o'clock; don't we'll they've I'd he's you're",
    "  two spaces,\ttabs\n\nand lines \r\n ending in white space   ",
    "1234567890 12,345.67 1e-5 0x1F 50% £3 €4 №5 ²³ ½ ٣٤ १२",
    "naïve café Ünïcödé ærø ŵŷ ǅ ﬁ ß İi̇ ǆ",
    "日本語の文章。 中文，标点！ 한국어 문장 ภาษาไทย हिन्दी العربية עברית ελληνικά русский",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 𝒳 𐍈 e\u0301 a\u200db \ufeff \u00a0\u2003\u3000|",
    "def f(x): return {'a': [x**2, \"b\"]}  # comment\n<|endoftext|> <s> </s> &amp; http://example.org/?q=1",
    "AAAAAAAAAAAAAAAAaaaaaaaaaaaaaaaa                                !!!!!!!!????....----____====~~~~",
    "\x00\x01\x1b[0m\x7f \x85 \u2028 \u2029 \ue000 \U0010ffff",
    "",
)
"""Texts on which our ids are held against tokenizers': scripts, marks, numbers, white space, controls, emoji, code."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One link: whether it holds, and what was found."""

    name: str
    verdict: LinkVerdict
    detail: str
    lines: tuple[str, ...] = ()
    """One line a file, where there is more to say."""

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}, {self.detail}"


def check_links(folder: str | Path) -> tuple[Link, ...]:
    """The links of a checkpoint folder by itself; what comes after a broken one that it needs is not checked.

    >>> from labkit.load import embedded
    >>> [(link.name, link.verdict) for link in check_links(embedded())]
    [('file bytes', 'holds'), ('header', 'holds'), ('tensors', 'holds'), ('tokenizer ids', 'holds')]
    """
    place = path_of(folder, "folder")
    checks: dict[str, Check] = {
        "file bytes": _file_bytes,
        "header": _headers,
        "tensors": _tensors,
    }
    links: list[Link] = []
    for name, check in checks.items():
        if links and links[-1].verdict != "holds":
            links.append(Link(name=name, verdict="not checked", detail="the link before it is broken"))
        else:
            links.append(_checked(name, check, place))
    return (*links, _checked("tokenizer ids", _tokenizer_ids, place))


def report_links(report: Report) -> tuple[Link, ...]:
    """The links of a verification: taps, logits, tokens."""
    return _taps(report), _logits(report), _tokens(report)


def whole_chain(report: Report, folder: str | Path | None = None) -> tuple[Link, ...]:
    """Every link of a verification of ``folder`` (default: the embedded checkpoint)."""
    return (*check_links(folder_of(folder)), *report_links(report))


def first_broken(links: Sequence[Link]) -> Link | None:
    """The first link that does not hold."""
    return next((link for link in links if link.verdict == "broken"), None)


class Broken(Exception):  # noqa: N818  (a finding on the way out of a check, never seen by a caller)
    """A link does not hold; the text says why."""


def _checked(name: str, check: Check, folder: Path) -> Link:
    try:
        found = check(folder)
    except (Broken, LabkitError) as error:
        return Link(name=name, verdict="broken", detail=str(error))
    if found is None:
        return Link(name=name, verdict="not checked", detail="the folder has no such files")
    return Link(name=name, verdict="holds", detail=found[0], lines=found[1])


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if (folder / SINGLE_NAME).is_file() or not index.is_file():
        return [folder / SINGLE_NAME]
    return [folder / shard for shard in parse_index(read_regular(index), str(index)).shards]


def _file_bytes(folder: Path) -> Found:
    """Size and SHA-256 of every file that is read, with the released ones named."""
    files = _weight_files(folder)
    for file in files:
        if not file.is_file():
            raise MissingFileError("the file is not there", where=file)
    names = ("config.json", "vocab.json", "merges.txt", "tokenizer.json")
    files += [folder / name for name in names if (folder / name).is_file()]
    lines = tuple(_one_file(file) for file in files)
    return f"{counted(len(files), 'file')}, {sum(file.stat().st_size for file in files):,} bytes", lines


def _one_file(file: Path) -> str:
    nbytes, digest = file.stat().st_size, sha256_of(file)
    released = RELEASED_SHA256.get(file.name)
    if digest == released:
        return f"{file.name}: {nbytes:,} bytes, SHA-256 {digest} (GPT-2 small's released file)"
    if file.name == SINGLE_NAME and nbytes == RELEASED_NBYTES:
        raise Broken(
            f"{file.name} is as long as GPT-2 small's released file, but its SHA-256 is {digest}, not {released}"
        )
    return f"{file.name}: {nbytes:,} bytes, SHA-256 {digest}"


def _headers(folder: Path) -> Found:
    """The strict parse of every header, and of the index against them."""
    with open_snapshot(folder) as snapshot:
        headers = list(snapshot.headers.values())
        size = sum(header.header_nbytes for header in headers)
        files = f" in {len(headers)} files" if len(headers) > 1 else ""
        return (
            f"{counted(len(snapshot), 'tensor')}, {counted(size, 'header byte')}{files}, every rule of the format kept",
            snapshot.notes,
        )


def _tensors(folder: Path) -> Found:
    """Every tensor by labkit's reader and by the official library."""
    with open_snapshot(folder) as snapshot:
        shards = list(snapshot.headers)
    parity = compare_readers(shards)
    if parity.differing:
        more = f" and {len(parity.differing) - 3} more" if len(parity.differing) > 3 else ""
        raise Broken(f"read otherwise than by the official library: {', '.join(parity.differing[:3])}{more}")
    return f"{parity.tensors} read bit for bit as by the official library", (f"all together SHA-256 {parity.sha256}",)


def _tokenizer_ids(folder: Path) -> Found | None:
    """Our ids against those of tokenizers, which reads the files itself, on the battery, and back to the text."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return None
    tokenizer, peer, count = Tokenizer.from_folder(folder), tokenizers_encode_files(folder), 0
    texts = (*BATTERY, *_own_texts(tokenizer))
    for text in texts:
        parity = compare_with_peer(tokenizer, text, "tokenizers", encode=peer)
        if parity.difference is not None:
            raise Broken(str(parity))
        if tokenizer.decode(tokenizer.encode(text)) != text:
            raise Broken(f"the ids of {text!r} do not decode to it again")
        count += parity.tokens
    return (
        f"{counted(len(texts), 'text')}, every token's own among them, {counted(count, 'id')} as by tokenizers, and back",
        (),
    )


def _own_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """The text of every token that is whole characters."""
    for data in tokenizer.vocabulary.tokens:
        try:
            yield (data or b"").decode()
        except UnicodeDecodeError:
            continue


def _taps(report: Report) -> Link:
    stages = [stage for stage in report.stages if stage.name != "logits"]
    if not stages:
        return Link(name="taps", verdict="not checked", detail="none was shown besides the logits")
    wrong = [stage for stage in stages if stage.verdict == "differs"]
    if wrong:
        return Link(
            name="taps", verdict="broken", detail=f"{wrong[0].name} is the first of {len(wrong)} beyond rounding"
        )
    most = max(stages, key=lambda stage: stage.used)
    return Link(
        name="taps",
        verdict="holds",
        detail=f"{len(stages)} within rounding, at most {most.used:.2f} of it ({most.name})",
    )


def _logits(report: Report) -> Link:
    stage = next((each for each in report.stages if each.name == "logits"), None)
    if stage is None:
        return Link(name="logits", verdict="not checked", detail="none were shown")
    text = f"{stage.used:.2f} of what rounding explains" if stage.used < 1000 else "far beyond rounding"
    return Link(name="logits", verdict="broken" if stage.verdict == "differs" else "holds", detail=text)


def _tokens(report: Report) -> Link:
    if report.unrun is not None:
        return Link(name="tokens", verdict="not checked", detail=f"not run: {report.unrun}")
    if not any(result.expected for result in report.tokens):
        return Link(name="tokens", verdict="not checked", detail="none were generated")
    parted = [number for number, result in enumerate(report.tokens, 1) if result.verdict == "differs"]
    if parted:
        return Link(
            name="tokens", verdict="broken", detail=f"after prompt {parted[0]} they part by more than rounding explains"
        )
    count = sum(len(result.expected) for result in report.tokens)
    flips = sum(result.verdict == "coin flip" for result in report.tokens)
    more = f", {flips} of {len(report.tokens)} prompts part at a tie within rounding" if flips else ""
    return Link(
        name="tokens",
        verdict="holds",
        detail=f"{counted(count, 'greedy token')} after {counted(len(report.tokens), 'prompt')}{more}",
    )

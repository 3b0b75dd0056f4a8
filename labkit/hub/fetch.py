"""A repository on the hub -> a folder with the files a GPT-2 needs, each checked against its hash.

Weights come as safetensors or not at all: pickles and the copies for other frameworks are never asked for. What the
hub's own cache already has is used where it lies. The transfer is huggingface_hub's; a file cut off is continued.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.errors import ArgumentError, CheckpointError, FileAccessError, LabkitError, MissingFileError
from labkit.hub.released import RELEASED_REPOSITORIES, RELEASED_SHA256, git_blob_of, sha256_of

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NEEDED = ("config.json", WEIGHTS, "vocab.json", "merges.txt")
"""What a folder must hold to be run and to encode text."""
WELCOME = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Small files that are fetched where the repository has them."""

_SHARD = re.compile(r"model-[\w.-]+\.safetensors", re.ASCII)  # no separator: a name must not leave the folder
State = Literal["downloaded", "present", "hub cache"]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """What the hub says of one file."""

    name: str
    nbytes: int
    sha256: str | None  # of large files
    git_blob: str | None  # of small ones


@dataclass(frozen=True, kw_only=True)
class FetchedFile:
    """One file in its place."""

    name: str
    nbytes: int
    sha256: str
    state: State


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A folder ready to be loaded."""

    folder: Path
    repository: str
    commit: str | None  # None where the hub could not be asked
    files: tuple[FetchedFile, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        counts = {
            state: sum(each.state == state for each in self.files) for state in ("downloaded", "present", "hub cache")
        }
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        head = f"{self.folder}: {self.repository}{f' at {self.commit[:12]}' if self.commit else ''}: {told}, hashes checked"
        return "\n".join([head, *(f"  {note}" for note in self.notes)])


def fetch(
    repository: str,
    *,
    folder: str | Path | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    cache: str | Path | None = None,
    say: Say | None = None,
) -> Fetched:
    """Bring ``repository`` into ``folder`` (default: ``models/NAME``), or find it in the hub's cache.

    A second call downloads nothing. Where no ``folder`` is given and the hub's cache has every file, the cache's folder
    is the answer; where one is given, it gets links to the cache. ``endpoint`` is the hub's address (default:
    HF_ENDPOINT), ``cache`` the hub's cache (default: where huggingface_hub keeps it).

    Raises ``MissingFileError`` for a repository, revision or file that is not there, or a hub that cannot be reached;
    ``FileAccessError`` where the hub refuses; ``CheckpointError`` for a file whose hash is wrong (kept aside).
    """
    tell = say or (lambda _step: None)
    target = Path(folder) if folder is not None else Path("models") / repository.rsplit("/", 1)[-1]
    tell(f"asking the hub for {repository}")
    try:
        commit, wanted = list_files(repository, revision=revision, endpoint=endpoint)
    except _UnreachableError as error:
        return _offline(repository, target, revision, cache, str(error))
    released = revision is None and repository in RELEASED_REPOSITORIES
    known = RELEASED_SHA256 if released else {}
    cached = {each.name: _cached(repository, each.name, commit, cache) for each in wanted}
    place, notes = target, list[str]()
    if folder is None and None not in cached.values() and not all(_holds(target / each.name, each) for each in wanted):
        place = _parent(cached[WEIGHTS if WEIGHTS in cached else INDEX])
        notes.append("used where it lies in the hub's cache")
    files = []
    for each in wanted:
        state = _bring(each, place, cached[each.name], repository, commit, endpoint, tell)
        files.append(_checked(place / each.name, each, known.get(each.name), state))
    return Fetched(folder=place, repository=repository, commit=commit, files=tuple(files), notes=tuple(notes))


def _bring(
    file: RemoteFile, place: Path, cached: Path | None, repository: str, commit: str, endpoint: str | None, tell: Say
) -> State:
    """Have ``file`` stand in ``place``: it does already, or the hub's cache has it, or it is downloaded."""
    path = place / file.name
    if _holds(path, file):
        return "hub cache" if path == cached else "present"
    if cached is not None and cached.is_file():
        _link(cached, path)
        return "hub cache"
    tell(f"downloading {file.name}, {file.nbytes:,} bytes")
    _download(repository, commit, file, place, endpoint)
    return "downloaded"


def _parent(path: Path | None) -> Path:
    assert path is not None
    return path.parent


def choose_files(names: Iterable[str], *, where: str) -> list[str]:
    """The names of the files to fetch.

    >>> choose_files(["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "vocab.json"], where="x/y")
    ['config.json', 'model.safetensors', 'vocab.json']
    """
    held = set(names)
    shards = sorted(name for name in held if _SHARD.fullmatch(name))
    weights = [WEIGHTS] if WEIGHTS in held else [INDEX, *shards] if INDEX in held else []
    if not weights:
        pickles = sorted(name for name in held if name.endswith((".bin", ".pt", ".ckpt")))
        raise MissingFileError(
            "the repository has no safetensors weights",
            where=where,
            expected=WEIGHTS,
            got=", ".join(pickles) or "no weights at all",
            fix="labkit never downloads pickles; look for another revision or a converted copy",
        )
    others = [name for name in (*NEEDED, *WELCOME) if name in held and name != WEIGHTS]
    return [*others[:1], *weights, *others[1:]]


def list_files(repository: str, *, revision: str | None, endpoint: str | None) -> tuple[str, list[RemoteFile]]:
    """The commit that ``revision`` means, and the files to fetch with their sizes and hashes."""
    from huggingface_hub import HfApi

    with _told(repository, revision):
        info: Any = HfApi(endpoint=endpoint).model_info(repository, revision=revision, files_metadata=True)
    remote = {}
    for each in info.siblings or ():
        lfs = each.lfs
        remote[each.rfilename] = RemoteFile(
            name=each.rfilename,
            nbytes=int(each.size or 0),
            sha256=lfs.sha256 if lfs is not None else None,
            git_blob=each.blob_id if lfs is None else None,
        )
    return str(info.sha), [remote[name] for name in choose_files(remote, where=repository)]


class _UnreachableError(Exception):
    """The hub did not answer."""


@contextmanager
def _told(repository: str, revision: str | None) -> Iterator[None]:
    """Turn the hub's errors into ours; a hub that does not answer raises ``_UnreachableError``."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    transport = next(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")  # of the HTTP client
    where = f"{repository}, revision {revision}" if revision else repository
    try:
        yield
    except LabkitError:
        raise
    except HFValidationError as error:
        raise ArgumentError("not the name of a repository", where=repository, fix="write it as owner/name") from error
    except OfflineModeIsEnabled as error:
        raise _UnreachableError("offline mode is set") from error
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        if code in (401, 403):
            fix = "it is private, gated or mistyped; check the name, or log in with `hf auth login`"
            raise FileAccessError(f"the hub refuses ({code})", where=where, fix=fix) from error
        if code == 404:
            fix = "check owner, name and revision"
            raise MissingFileError(
                "the hub has no such repository, revision or file (404)", where=where, fix=fix
            ) from error
        raise FileAccessError(f"the hub answers with an error ({code})", where=where, fix="try again later") from error
    except (transport, OSError) as error:  # type: ignore[misc]
        raise _UnreachableError(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
        ) from error


def _download(repository: str, commit: str, file: RemoteFile, folder: Path, endpoint: str | None) -> None:
    """Fetch one file; what an earlier run got of it is continued."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    place = folder / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    mark = (file.sha256 or file.git_blob or commit)[:12]
    partial = folder / f".{file.name}.{mark}.incomplete"
    url = hf_hub_url(repository, file.name, revision=commit, endpoint=endpoint)
    try:
        with _told(repository, commit), partial.open("ab") as out:
            held = out.tell()
            if held > file.nbytes:
                out.truncate(0)
                held = 0
            http_get(
                url,
                out,
                resume_size=held,
                headers=build_hf_headers(),
                expected_size=file.nbytes,
                displayed_filename=file.name,
            )
    except _UnreachableError as error:
        got = partial.stat().st_size if partial.exists() else 0
        raise FileAccessError(
            "the download was cut off",
            where=place,
            expected=f"{file.nbytes:,} bytes",
            got=f"{got:,} bytes ({error})",
            fix="run the same command again: it continues where this one stopped",
        ) from error
    partial.replace(place)


def _holds(path: Path, file: RemoteFile) -> bool:
    """Whether the file is there with the content that the hub names."""
    if not path.is_file() or path.stat().st_size != file.nbytes:
        return False
    return file.sha256 is not None or file.git_blob is None or git_blob_of(path) == file.git_blob


def _checked(path: Path, file: RemoteFile, released: str | None, state: State) -> FetchedFile:
    digest = sha256_of(path)
    small = git_blob_of(path) if file.git_blob is not None else None
    for wanted, found in ((file.sha256, digest), (released, digest), (file.git_blob, small)):
        if wanted is not None and wanted != found:
            aside = _set_aside(path)
            raise CheckpointError(
                "the file is not the one that was published",
                where=path,
                expected=f"{'SHA-256' if found == digest else 'git blob'} {wanted}",
                got=found,
                fix=f"it was kept as {aside}; fetch again",
            )
    return FetchedFile(name=file.name, nbytes=path.stat().st_size, sha256=digest, state=state)


def _set_aside(path: Path) -> Path:
    """Rename a bad file (of the hub's cache: the blob behind the link) so that nothing loads it."""
    blob = Path(os.path.realpath(path))
    aside = blob.with_name(f"{blob.name}.bad")
    blob.replace(aside)
    if path.is_symlink():
        path.unlink()
    return aside


def _cached(repository: str, name: str, revision: str, cache: str | Path | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, name, revision=revision, cache_dir=cache)
    return Path(found) if isinstance(found, str) else None


def _link(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    try:
        place.symlink_to(os.path.realpath(source))
    except OSError as error:
        raise FileAccessError(
            "no link to the hub's cache could be made",
            where=place,
            got=error.strerror,
            fix=f"load {source.parent} as it is",
        ) from error


def _offline(repository: str, target: Path, revision: str | None, cache: str | Path | None, reason: str) -> Fetched:
    """What is on this machine already, or what is missing and where to put it."""
    known = RELEASED_SHA256 if revision is None and repository in RELEASED_REPOSITORIES else {}
    places: tuple[tuple[Path | None, State], ...] = (
        (target, "present"),
        (_cache_folder(repository, revision, cache), "hub cache"),
    )
    for folder, state in places:
        if folder is not None and all((folder / name).is_file() for name in NEEDED):
            files = []
            for name in (*NEEDED, *(each for each in WELCOME if (folder / each).is_file())):
                path = folder / name
                claim = RemoteFile(name=name, nbytes=path.stat().st_size, sha256=None, git_blob=None)
                files.append(_checked(path, claim, known.get(name), state))
            note = f"the hub cannot be reached ({reason}): " + (
                "the released hashes were checked" if known else "there was no hash to check against"
            )
            return Fetched(folder=folder, repository=repository, commit=None, files=tuple(files), notes=(note,))
    lacking = [name for name in NEEDED if not (target / name).is_file()]
    raise MissingFileError(
        f"the hub cannot be reached ({reason}), and not every file is here",
        where=repository,
        got=f"{', '.join(lacking)} missing",
        fix=f"get them on a machine that is online and put them in {target}",
    )


def _cache_folder(repository: str, revision: str | None, cache: str | Path | None) -> Path | None:
    found = _cached(repository, "config.json", revision or "main", cache)
    return found.parent if found is not None else None

"""Report -> certificate: what was verified, with what, and what it does not show, as a file to keep and to run again."""

import hashlib
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch

from labkit.errors import TraceError
from labkit.load import folder_of, load_gpt2
from labkit.outside import NotJson, parse_json, read_regular
from labkit.verification.chain import build_chain
from labkit.verification.detective import Coverage, sites
from labkit.verification.hypotheses import HYPOTHESES, Scene
from labkit.verification.precision import Precision
from labkit.verification.reference import load_reference, parameters_of
from labkit.verification.replay import Replay
from labkit.verification.report import Report, Verdict
from labkit.verification.standard import recorded, reference_forward
from labkit.verification.trials import trial_prompts
from labkit.verification.verify import verify
from labkit.verification.verify_trace import verify_trace

FORMAT = "labkit-certificate"
VERSION: Literal[1] = 1
HASHED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
)
PACKAGES = ("labkit", "torch", "transformers", "safetensors", "numpy")


class CertifiedFinding(msgspec.Struct, frozen=True):
    """What is wrong, and where, as a certificate states it."""

    where: str
    cause: str | None


class CertifiedPrompt(msgspec.Struct, frozen=True):
    """A prompt as a certificate states it."""

    ids: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]


class CertifiedFiles(msgspec.Struct, frozen=True):
    """File name -> SHA-256."""

    sha256: dict[str, str]


class Certificate(msgspec.Struct, frozen=True):
    """The fields of a certificate that running it again needs, under its own names."""

    format: Literal["labkit-certificate"]
    verdict: Verdict
    planted: str | tuple[str, ...] | None
    dtype: str
    device: str
    greedy_tokens: Annotated[int, msgspec.Meta(ge=0)]
    prompts: Annotated[tuple[CertifiedPrompt, ...], msgspec.Meta(min_length=1)]
    checkpoint: CertifiedFiles
    version: Literal[1] = VERSION
    engine: str | None = None
    first_divergence: str | None = None
    findings: tuple[CertifiedFinding, ...] = ()
    trace_sha256: str | None = None


def certify(report: Report, folder: Path) -> dict[str, Any]:
    """The certificate of a verification, as plain JSON values.

    ``same`` claims no more than its coverage: ``coverage.seen`` lists the mistakes that would have shown at every stage
    they can be made at, ``coverage.partly`` those that would have shown at some, with the others, and
    ``coverage.unseen`` those that could not have shown at all, each with the shortest prompt that would show it
    everywhere, where one was found. At the stages of ``coverage.not_rehearsed`` nothing is said of any mistake.
    """
    coverage = report.coverage or Coverage({})
    shortest = shortest_prompts(folder, coverage, report.precision)
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": report.verdict,
        "first_divergence": report.first_divergence,
        "findings": [
            {"where": finding.where, "cause": finding.cause, "text": finding.text} for finding in report.findings
        ],
        "engine": report.engine,
        "planted": list(report.planted),
        "trace_sha256": report.trace_sha256,
        "dtype": report.dtype,
        "device": report.device,
        "greedy_tokens": max((len(result.actual) for result in report.tokens), default=0),
        "prompts": [{"text": prompt.text, "ids": list(prompt.ids)} for prompt in report.prompts],
        "checkpoint": {"name": folder.name, "sha256": hash_files(folder)},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "controls": {
            "clean_used": report.controls.clean_used,
            "planted": report.controls.planted,
            "failures": list(report.controls.failures),
        },
        "coverage": {
            "seen": list(coverage.seen),
            "partly": {
                name: {
                    "seen": list(coverage.stages_seen(name)),
                    "unseen": list(coverage.stages_unseen(name)),
                    "shortest_prompt": shortest[name],
                }
                for name in coverage.partly
            },
            "unseen": {name: shortest[name] for name in coverage.unseen},
            "not_rehearsed": list(coverage.skipped),
        },
        "notes": list(report.notes),
    }


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide what a checkpoint computes: weights, config and vocabulary."""
    names = [*HASHED, *(path.name for path in sorted(folder.glob("*.safetensors")))]
    found = {}
    for name in dict.fromkeys(names):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@torch.inference_mode()
def shortest_prompts(folder: Path, coverage: Coverage, precision: Precision) -> dict[str, str | None]:
    """For each mistake that could not have shown everywhere, the shortest of a few trial prompts on which it would.

    It must show at every stage it could not have shown at; None where no prompt does. Prompts of random ids are tried
    in order of length, then a padded batch, in an engine's ``precision``. What none shows is a mistake that this
    checkpoint has no room for, or whose effect is smaller than rounding.
    """
    wanted = {name: set(coverage.stages_unseen(name)) for name in (*coverage.partly, *coverage.unseen)}
    answers: dict[str, str | None] = dict.fromkeys(wanted)
    if not wanted:
        return answers
    model = load_gpt2(folder)
    truth = load_reference(folder, weight_dtype=precision.weight, config=model.config)
    weights, config = parameters_of(truth), model.config
    left = set(wanted)
    for text, inputs in trial_prompts(config):
        if not left:
            break
        stages = build_chain(config, weights, inputs)
        taps = {tap: value.to(precision.compute) for tap, value in recorded(reference_forward(truth, inputs)).items()}
        replay = Replay(
            Scene(config, weights, stages, inputs, precision, taps),
            [hypothesis for hypothesis in HYPOTHESES if hypothesis.name in left],
        )
        effects: dict[str, dict[str, float]] = {name: {} for name in left}
        for tap in sites(stages):
            for (name, stage), effect in replay.visible(tap).items():
                effects[name][stage] = effect
        shown = {name for name, by_stage in effects.items() if _shows(by_stage, wanted[name])}
        answers |= dict.fromkeys(shown, text)
        left -= shown
    return answers


def _shows(effects: Mapping[str, float], wanted: Collection[str]) -> bool:
    """Whether a mistake's effects are larger than rounding at the stages wanted, or at all where none is named."""
    stages = wanted or effects
    return bool(stages) and all(effects.get(stage, 0.0) > 1 for stage in stages)


@dataclass(frozen=True)
class Recheck:
    """A certificate run again: what is as it was, and what is not."""

    report: Report
    differences: tuple[str, ...]

    @property
    def return_code(self) -> int:
        """0 where everything is as certified, else 1."""
        return 1 if self.differences else 0

    def __str__(self) -> str:
        if not self.differences:
            return f"as certified: {self.report.verdict}, on the same files and prompts"
        return "not as certified: " + "; ".join(self.differences)


def recheck(
    path: str | Path,
    folder: str | Path | None = None,
    *,
    trace: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recheck:
    """Verify again what a certificate says, on ``folder`` (default: the embedded checkpoint), and compare.

    ``trace``: the trace file, where the certificate is of one. Raises ``TraceError`` where the file is no certificate
    or cannot be run again like this, ``MissingFileError`` where it is not there.
    """
    stated = read_certificate(path)
    _check_source(stated, path, trace)
    place = folder_of(folder)
    if trace is not None:
        report = verify_trace(trace, place, progress=progress)
    else:
        report = verify(
            place,
            ids=[prompt.ids for prompt in stated.prompts],
            plant=stated.planted,
            dtype=stated.dtype,
            device=stated.device,
            tokens=stated.greedy_tokens,
            progress=progress,
        )
    return Recheck(report, tuple(_differences(stated, report, hash_files(place))))


def _check_source(stated: Certificate, path: str | Path, trace: str | Path | None) -> None:
    engine = stated.engine
    if stated.trace_sha256 is None and engine != "labkit":
        what = "only certificates of labkit's own engine and of traces can be run again"
        raise TraceError(what, where=path, got=f"engine {engine!r}", fix="verify that engine again itself")
    if stated.trace_sha256 is not None and trace is None:
        raise TraceError(
            "the certificate is of a trace", where=path, got=f"engine {engine!r}", fix="give the file with --trace"
        )
    if stated.trace_sha256 is None and trace is not None:
        raise TraceError("the certificate is of labkit's own engine, not of a trace", where=path, fix="give no trace")


def read_certificate(path: str | Path) -> Certificate:
    """The certificate in a file; raises ``TraceError`` naming the field where one is not as it must be."""
    try:
        stated = parse_json(read_regular(path, what="certificate"))
    except NotJson as error:
        raise TraceError(f"the certificate is not JSON: {error}", where=path) from error
    if not isinstance(stated, dict) or stated.get("format") != FORMAT:
        raise TraceError("not a certificate", where=path, expected=f'"format": "{FORMAT}"')
    try:
        return msgspec.convert(stated, Certificate)
    except msgspec.ValidationError as error:
        what, _, field = str(error).partition(" - at `$.")
        place = f", field {field.rstrip('`')}" if field else ""
        raise TraceError(f"the certificate cannot be used: {what}", where=f"{path}{place}") from error


def _differences(stated: Certificate, report: Report, hashes: Mapping[str, str]) -> list[str]:
    found = []
    if stated.verdict != report.verdict:
        found.append(f"the verdict is {report.verdict}, it was {stated.verdict}")
    if stated.first_divergence != report.first_divergence:
        found.append(f"the first divergence is {report.first_divergence}, it was {stated.first_divergence}")
    causes = [[finding.where, finding.cause] for finding in report.findings]
    if causes != [[finding.where, finding.cause] for finding in stated.findings]:
        found.append(f"the findings are {causes}")
    if stated.trace_sha256 != report.trace_sha256:
        found.append("the trace is another file")
    for name in sorted(set(hashes) | set(stated.checkpoint.sha256)):
        if hashes.get(name) != stated.checkpoint.sha256.get(name):
            found.append(f"{name} is another file")
    return found

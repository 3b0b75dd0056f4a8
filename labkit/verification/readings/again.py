"""A judged candidate -> the case with the findings that a reading explains told as one."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from labkit.verification.budget import compared, share_of, storage_uncertainty
from labkit.verification.chain import recorded_inputs
from labkit.verification.finding import Finding
from labkit.verification.hypotheses import Scene, site_taps
from labkit.verification.readings.reading import Reading, Stated
from labkit.verification.readings.recorded import recordings
from labkit.verification.readings.stated import dtypes, other_weights, positions, rows
from labkit.verification.standard import LARGE_NUMEL, Case
from labkit.verification.verdict import expect_locally
from labkit.words import listed


def read_again(case: Case, scene: Scene, stated: Stated) -> Case:
    """The case with the findings that a reading explains told as one, where some finding is without a cause."""
    usable = [stage.name for stage in case.stages if stage.cause != "shape"]
    scene = replace(scene, candidate={name: scene.candidate[name] for name in usable})
    if not case.findings:
        return _as_a_whole(case, scene, stated)
    if all(finding.kind in ("named", "shape", "non-finite") for finding in case.findings):
        return case
    findings = list(case.findings)
    wrong = [stage.name for stage in case.stages if stage.cause == "local"]
    with torch.inference_mode():
        for readings in (positions, rows, dtypes, other_weights, *[recordings] * len(wrong)):
            for reading in readings(scene, stated, wrong):
                explained = _explained(reading, scene, wrong)
                told = [each for each in findings if _belongs(each, wrong, explained)]
                if told:
                    findings[findings.index(told[0])] = _finding(reading, told[0], explained)
                    findings = [each for each in findings if each not in told]
                    wrong, scene = [tap for tap in wrong if tap not in explained], reading.scene
                    break
            else:
                if readings is recordings:
                    break  # none of them explains anything more
    return replace(case, findings=tuple(findings))


def _as_a_whole(case: Case, scene: Scene, stated: Stated) -> Case:
    """Where no operation is wrong by itself and the whole strays all the same: a dtype in which it does not.

    Values that were stored narrower than computed hide in each operation what adds up along the chain.
    """
    first = next((stage for stage in case.stages if stage.verdict == "differs"), None)
    if first is None:
        return case
    for reading in dtypes(scene, stated, ()):
        other = stated.standard.in_precision(reading.scene.precision).judge(scene.candidate, scene.inputs)
        if not other.controls.failures and all(stage.verdict == "same" for stage in other.stages):
            finding = Finding(
                where=first.name,
                span=tuple(stage.name for stage in case.stages if stage.verdict == "differs"),
                kind="named",
                cause=reading.name,
                home=first.name,
                candidates=(reading.name,),
                text=f"{reading.text} [{reading.name}]",
                error_right=first.local_error,
                error_replayed=None,
                share_right=first.local_used,
                share_replayed=None,
                tensors=(),
                next_step=reading.next_step,
            )
            return replace(case, findings=(finding,))
    return case


def _belongs(finding: Finding, wrong: Sequence[str], explained: Sequence[str]) -> bool:
    """Whether all that differs at a finding's site is explained."""
    site = [tap for tap in site_taps(finding.where) if tap in wrong]
    return finding.kind in ("unknown", "tie", "named") and bool(site) and all(tap in explained for tap in site)


def _explained(reading: Reading, scene: Scene, wrong: Sequence[str]) -> list[str]:
    """The stages that a reading brings within rounding; none where it brings another out of it."""
    explained = [tap for tap in wrong if tap in reading.about or _share(reading.scene, tap) <= 1]
    if not explained:
        return []
    right = [tap for tap in reading.scene.candidate if tap not in wrong and _touched(reading, scene, tap)]
    return [] if any(_share(reading.scene, tap) > 1 for tap in right) else explained


def _touched(reading: Reading, scene: Scene, tap: str) -> bool:
    """Whether a recorded stage is judged otherwise than before."""
    other = reading.scene
    if other.stages is not scene.stages or other.precision != scene.precision:
        return True
    sources = recorded_inputs(scene.stages[tap], scene.stages, set(scene.candidate))
    return any(other.candidate.get(name) is not scene.candidate[name] for name in (tap, *sources))


def _share(scene: Scene, tap: str) -> float:
    """The largest error of an operation on the recorded inputs, over its budget; 0 of a tap too large to be tried."""
    actual = scene.candidate[tap]
    if actual.numel() > LARGE_NUMEL:
        return 0.0
    expected = expect_locally(scene.stages[tap], scene.stages, scene.candidate, scene.precision)
    if expected.output.shape != actual.shape:
        return float("inf")
    budget = expected.budget + storage_uncertainty(expected.output, actual.dtype, scene.precision)
    error = (actual.double() - expected.output).abs()
    return float(share_of(error, budget, compared(tap, scene.inputs)).max())


def _finding(reading: Reading, first: Finding, explained: Sequence[str]) -> Finding:
    """One finding in place of those it explains, where the first of them stood."""
    others = [tap for tap in explained if tap != first.where]
    more = f" (so {listed(others, most=3)} {'differs' if len(others) == 1 else 'differ'} too)" if others else ""
    return replace(
        first,
        span=tuple(explained),
        kind="named",
        cause=reading.name,
        home=first.where,
        candidates=(reading.name,),
        text=f"{reading.text}{more} [{reading.name}]",
        error_replayed=None,
        share_replayed=None,
        tensors=(),
        next_step=reading.next_step,
    )

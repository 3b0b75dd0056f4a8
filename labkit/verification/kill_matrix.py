"""Every fault planted in a real forward, against our verdict and the rules that other tools use.

A check that cannot fail proves nothing. Each cell plants one fault in one block and ends in one of three ways:
*killed* (the verdict is differs), *equivalent* (planted in a float64 run it changes nothing, so there is nothing to
find on this prompt), or *below the floor* (its whole effect is smaller than rounding, and the effect is shown). A cell
that is none of these is a survivor: a hole in the checks.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from labkit.errors import CheckpointError, UnknownNameError
from labkit.load import folder_of, load_gpt2
from labkit.model import GPT2
from labkit.verification.agreement import agree
from labkit.verification.budget import compared
from labkit.verification.chain import left_padded
from labkit.verification.faults import FAULTS, Fault
from labkit.verification.hypotheses import HYPOTHESES, Hypothesis, site_taps
from labkit.verification.precision import Precision
from labkit.verification.prompts import check_room, choose_prompts
from labkit.verification.rehearsal import Rehearsal
from labkit.verification.standard import Standard
from labkit.verification.threads import threads_for
from labkit.words import counted

Outcome = Literal["killed", "equivalent", "below floor", "survived"]

PROMPTS = (
    "It was a bright cold morning, and the whole family had come down to the door to see the carriage go; for the "
    "road was long, the horses were fresh, and nobody could say with any certainty when the young people would be "
    "at home again, or whether they would ever be so merry together in that house as they had been this autumn.",
    "“I am sure,” said he, “that you know very little of the matter",
)
"""One prompt of more than 64 tokens and a shorter one beside it, so that positions and padding can go wrong."""

EQUIVALENT = 1e-12
"""A fault whose float64 run moves no tap by more than this share of the tap's largest value changes nothing."""

RULES: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "cosine 0.997": lambda a, e: float(a @ e) < 0.997 * float(a.norm() * e.norm()),
    "nmse 1e-2": lambda a, e: float((a - e).square().sum()) > 1e-2 * float(e.square().sum()),
    "allclose 1e-4": lambda a, e: not torch.allclose(a, e, rtol=1e-4, atol=1e-4),
    "allclose 1e-3": lambda a, e: not torch.allclose(a, e, rtol=1e-3, atol=1e-3),
}
"""Rules that other tools put a tap to (flat float64, actual then expected): true where the rule would object."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault in one block."""

    name: str
    block: int
    outcome: Outcome
    found_at: str | None
    """The first stage called different."""
    expected_at: str
    finding: str | None
    """The cause that the diagnosis named at the fault's own stage; None where it named none."""
    expected_finding: str
    tied: tuple[str, ...]
    """The causes that reproduce it equally well there, where the prompt cannot tell them apart."""
    others: tuple[str, ...]
    """Causes named anywhere else: there should be none."""
    effect: float
    """The largest error that the fault makes at its own stage, in budgets."""
    floor: float | None
    """The smallest share of the fault that is still called different; None where the whole of it is not."""
    rules: Mapping[str, bool]
    """Whether each imitated rule would have objected, to any tap or (top-1, top-5) to the logits."""

    @property
    def killed(self) -> bool:
        """Whether the verdict was differs."""
        return self.outcome == "killed"

    @property
    def equivalent(self) -> bool:
        """Whether the fault was proved to change nothing here."""
        return self.outcome == "equivalent"

    @property
    def named_right(self) -> bool:
        """Killed, at the stage where it was planted, and under its own name or in a tie with it."""
        named = self.expected_finding in (self.finding, *self.tied)
        return self.killed and self.found_at == self.expected_at and named


@dataclass(frozen=True, kw_only=True)
class KillMatrix:
    """All cells of one checkpoint and prompt."""

    checkpoint: str
    cells: tuple[Cell, ...]

    @property
    def survivors(self) -> tuple[Cell, ...]:
        """Cells that were neither seen nor shown to be invisible."""
        return tuple(cell for cell in self.cells if cell.outcome == "survived")

    @property
    def misnamed(self) -> tuple[Cell, ...]:
        """Cells killed at another stage or under another name."""
        return tuple(cell for cell in self.cells if cell.killed and not cell.named_right)

    @property
    def never_killed(self) -> tuple[str, ...]:
        """Faults that no cell of this matrix killed."""
        killed = {cell.name for cell in self.cells if cell.killed}
        return tuple(dict.fromkeys(cell.name for cell in self.cells if cell.name not in killed))

    @property
    def return_code(self) -> int:
        """0 where no cell survived and none was misnamed, else 1."""
        return 1 if self.survivors or self.misnamed else 0

    def __str__(self) -> str:
        count = {
            kind: sum(cell.outcome == kind for cell in self.cells) for kind in ("killed", "equivalent", "below floor")
        }
        text = (
            f"{counted(len(self.cells), 'cell')} on {self.checkpoint}: {count['killed']} killed, {count['equivalent']} equivalent, "
            f"{count['below floor']} below the floor, {len(self.survivors)} survived; "
            f"{len(self.misnamed)} misnamed"
        )
        holes = [
            f"{cell.name}:{cell.block} {cell.outcome}, called {cell.finding}"
            for cell in (*self.survivors, *self.misnamed)
        ]
        return "\n".join([text, *holes])


def kill_matrix(
    folder: str | Path | None = None,
    *,
    prompts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    faults: Sequence[str] | None = None,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
    floors: Literal["measure", "skip"] = "measure",
    progress: Callable[[str], None] | None = None,
) -> KillMatrix:
    """Plant every fault (or those named) in the first and the last block of ``folder``'s model and see what notices.

    Prompts of unequal length run as one left-padded batch.

    >>> matrix = kill_matrix(faults=["erf-gelu"], floors="skip")
    >>> [(cell.name, cell.block, cell.outcome, cell.finding) for cell in matrix.cells]
    [('erf-gelu', 0, 'killed', 'erf-gelu'), ('erf-gelu', 3, 'killed', 'erf-gelu')]
    """
    say = progress or (lambda _step: None)
    path = folder_of(folder)
    model = load_gpt2(path)
    chosen, _ = choose_prompts(path, model.config, PROMPTS if prompts is None and ids is None else prompts, ids)
    if prompts is None and ids is None:
        chosen = tuple(replace(prompt, ids=prompt.ids[-model.config.n_positions :]) for prompt in chosen)
    check_room(chosen, model.config)
    inputs = left_padded([prompt.ids for prompt in chosen])
    say("transformers in float64")
    rehearsal = Rehearsal.prepare(Standard(path, model.config, Precision()), inputs)
    exact = load_gpt2(path, dtype=torch.float64)
    bench = _Bench(rehearsal, model, exact, hypotheses, floors=floors == "measure")
    for results in (rehearsal.cleared, bench.clean.results):
        accused = next((tap for tap, result in results.items() if result.verdict == "differs"), None)
        if accused is not None:
            what = "a run without any fault is called different, so that no fault can be shown"
            raise CheckpointError(what, where=path, got=accused, fix="`labkit verify` says more of it")
    blocks = sorted({0, model.config.n_layer - 1})
    names = tuple(FAULTS) if faults is None else tuple(faults)
    for name in names:
        if name not in FAULTS:
            raise UnknownNameError.near("fault", name, FAULTS)
    plan = [(FAULTS[name], block) for name in names for block in blocks if FAULTS[name].applies(model.config, block)]
    cells = []
    with threads_for(model.config), ThreadPoolExecutor(_workers()) as pool:
        planted = pool.map(lambda pair: bench.cell(*pair), plan)
        try:
            for number, (fault, block) in enumerate(plan, 1):
                say(f"fault {number} of {len(plan)}: {fault.name} in block {block}")
                cells.append(next(planted))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return KillMatrix(checkpoint=path.name, cells=tuple(cells))


def _workers() -> int:
    """Cells judged at a time: as many as torch leaves processors free, where it uses one thread for each."""
    return max(1, min(4, (os.cpu_count() or 1) // torch.get_num_threads()))


class _Bench:
    """One model and prompt, on which faults are planted one after another."""

    def __init__(
        self, rehearsal: Rehearsal, model: GPT2, exact: GPT2, hypotheses: Sequence[Hypothesis], *, floors: bool
    ) -> None:
        self.rehearsal = rehearsal
        self.model = model
        self.exact = exact
        self.hypotheses = hypotheses
        self.floors = floors
        self.exact_taps = self._run(exact)
        self.clean = rehearsal.judge(self._run(model), hypotheses=hypotheses)

    def _run(self, model: GPT2, taps: str | Iterable[str] = "all") -> dict[str, Tensor]:
        inputs = self.rehearsal.inputs
        mask, positions = inputs.attention_mask, inputs.position_ids
        return model.run(inputs.ids, taps=taps, attention_mask=mask, position_ids=positions).taps

    def cell(self, fault: Fault, block: int) -> Cell:
        taps = self._run(fault.plant(self.model, block))
        judged = self.rehearsal.judge(taps, hypotheses=self.hypotheses, base=self.clean)
        results, findings = judged.results, judged.findings
        place = fault.expected_stage(block)
        own = [finding for finding in findings if finding.where == place]
        different = [name for name, result in results.items() if result.verdict == "differs"]
        found = different[0] if different else own[0].where if own else None
        effect = results[place].local_used
        outcome: Outcome = "killed" if found is not None or findings else self._why_not(fault, block, effect)
        return Cell(
            name=fault.name,
            block=block,
            outcome=outcome,
            found_at=found if not findings or found is None else min(found, findings[0].where, key=list(results).index),
            expected_at=place,
            finding=own[0].cause if own else None,
            expected_finding=fault.expected_finding,
            tied=own[0].candidates if own and own[0].kind == "tie" else (),
            others=tuple(str(finding.cause) for finding in findings if finding.where != place),
            effect=effect,
            floor=self._floor(fault, block) if self.floors and outcome == "killed" and fault.graded else None,
            rules=self._rules(taps),
        )

    def _why_not(self, fault: Fault, block: int, effect: float) -> Outcome:
        """A fault that was not seen: it changes nothing, or less than rounding does, or it is a hole."""
        moved = self._run(fault.plant(self.exact, block))
        share = 0.0
        for tap, value in self.exact_taps.items():
            mask = compared(tap, self.rehearsal.inputs).expand(value.shape)
            off = (moved[tap] - value)[mask].abs().max()
            share = max(share, float(off / value[mask].abs().max().clamp(min=1e-300)))
        if share <= EQUIVALENT:
            return "equivalent"
        return "below floor" if effect <= 1 else "survived"

    def _floor(self, fault: Fault, block: int) -> float | None:
        """The smallest share of the fault that its own stage still shows, by bisection on the logarithm of the size."""
        place = fault.expected_stage(block)

        def seen(size: float) -> bool:
            taps = self._run(fault.plant(self.model, block, size=size), self._judges(place))
            judged = self.rehearsal.judge(taps, hypotheses=())
            return any(result.cause == "local" for name, result in judged.results.items() if name in site_taps(place))

        low, high = -9.0, 0.0
        if not seen(1.0):
            return None
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (low, middle) if seen(10**middle) else (middle, high)
        return 10**high

    def _judges(self, place: str) -> set[str]:
        """The taps that a site is judged from."""
        site = site_taps(place)
        return {*site, *(name for tap in site for name in self.rehearsal.stages[tap].inputs)}

    def _rules(self, taps: Mapping[str, Tensor]) -> dict[str, bool]:
        inputs, expected = self.rehearsal.inputs, self.rehearsal.expected
        objects = dict.fromkeys(RULES, False)
        for tap, value in taps.items():
            true = expected[tap].output
            if value.shape != true.shape:
                return dict.fromkeys((*RULES, "top-1", "top-5"), True)
            mask = compared(tap, inputs).expand(value.shape)
            actual = value.double()[mask].nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
            for name, rule in RULES.items():
                objects[name] = objects[name] or rule(actual, true[mask])
        real = inputs.real
        likeness = agree(taps["logits"][real], expected["logits"].output[real])
        return {**objects, "top-1": likeness.top_1 < 1, "top-5": likeness.top_5 < 1}

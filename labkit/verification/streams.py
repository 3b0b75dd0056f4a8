"""A forward pass -> its taps one at a time, and a window on them that forgets what no later stage needs.

A full capture of a long prompt takes gigabytes, twice over for two engines. Here each engine runs in a thread of its
own that waits at every tap until the value is asked for, so that several engines walk down the stages in step.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from torch import Tensor

from labkit.verification.chain import Stage, recorded_inputs

Forward = Callable[[Callable[[str, Tensor], None]], object]
"""Runs a forward pass, calling its argument with each tap's name and value in order of computation."""


class _Stopped(Exception):  # noqa: N818  (not an error: the reader has gone)
    """Raised inside a forward whose taps nobody wants any more."""


class Window(Mapping[str, Tensor]):
    """The taps of one running forward, by name: read on demand, dropped when no stage to come needs them.

    Names must be asked for no earlier than the stages that were dropped. Close it, or use ``streamed``. With ``ahead``
    the forward computes the tap after the last one asked for; without, it holds less and waits more.
    """

    def __init__(self, forward: Forward, stages: Mapping[str, Stage], *, ahead: bool = True) -> None:
        self._names = tuple(stages)
        self._held: dict[str, Tensor] = {}
        self._items: queue.Queue[tuple[str, Tensor] | BaseException | None] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._ahead = ahead
        self._asked = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(forward,), daemon=True)
        self._thread.start()

    def _run(self, forward: Forward) -> None:
        with suppress(_Stopped):
            try:
                self._await_demand()
                forward(self._put)
            except _Stopped:
                raise
            except BaseException as error:  # handed to the reader, whatever it is
                self._offer(error)
            else:
                self._offer(None)

    def _put(self, name: str, value: Tensor) -> None:
        self._offer((name, value))
        del value  # the reader has it now, and may forget it while this waits
        self._await_demand()

    def _await_demand(self) -> None:
        while not self._ahead and not self._asked.acquire(timeout=0.05):
            if self._stop.is_set():
                raise _Stopped

    def _offer(self, item: tuple[str, Tensor] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._items.put(item, timeout=0.05)
            except queue.Full:
                continue
            return
        raise _Stopped

    def __getitem__(self, name: str) -> Tensor:
        while name not in self._held:
            self._asked.release()
            item = self._items.get()
            if item is None:
                raise KeyError(name)
            if isinstance(item, BaseException):
                raise item
            self._held[item[0]] = item[1]
        return self._held[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def forget(self, names: set[str]) -> None:
        """Drop the values of these taps."""
        for name in names & self._held.keys():
            del self._held[name]

    def close(self) -> None:
        """End the forward, finished or not."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._items.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)
        self._held.clear()


@contextmanager
def streamed(stages: Mapping[str, Stage], *forwards: Forward, ahead: bool = True) -> Iterator[tuple[Window, ...]]:
    """A window on each forward; all of them ended on the way out."""
    windows: list[Window] = []
    try:
        for forward in forwards:
            windows.append(Window(forward, stages, ahead=ahead))
        yield tuple(windows)
    finally:
        for window in windows:
            window.close()


def last_use(stages: Mapping[str, Stage], present: set[str]) -> dict[str, set[str]]:
    """For each stage, the taps that no later stage needs: what may be forgotten once it is judged.

    A stage needs its inputs; where the candidate has not recorded one, also the nearest ancestors that it has.
    """
    final = {tap: tap for tap in stages}
    for stage in stages.values():
        final |= dict.fromkeys((*stage.inputs, *recorded_inputs(stage, stages, present)), stage.tap)
    done: dict[str, set[str]] = {tap: set() for tap in stages}
    for tap, stage_name in final.items():
        done[stage_name].add(tap)
    return done


def until_block_ends(done: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same, held back to the end of each block: a replay may ask for any stage of the block so far."""
    kept: dict[str, set[str]] = {}
    waiting: set[str] = set()
    for tap, names in done.items():
        waiting |= names
        kept[tap] = set()
        if tap.endswith("resid_post") or tap == "logits":
            kept[tap], waiting = waiting, set()
    return kept

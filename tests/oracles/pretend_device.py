"""A GPU for machines that have none: its tensors hold CPU values and answer to CUDA's or MPS's rules.

In: code that asks for ``device="cuda"`` or ``"mps"``. Out: what it would compute there, or the error a GPU would raise.
Tensors of two places do not mix, and NumPy cannot see them; MPS knows no float64. A CUDA graph is captured as CUDA
captures it: nothing runs while it is captured (what it would have made is NaN), no value may be read back or brought
from the host, and each replay runs the very same operations on the very same memory, which has to be alive still. It
shows what a program does on a GPU, not how fast, and not how its products round.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Literal
from unittest.mock import patch
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

Kind = Literal["cuda", "mps"]
INSIDE = torch.device("privateuseone:0")
"""What torch's own C++ takes the device for: the one kind that may be registered from Python."""
aten = torch.ops.aten

READS_BACK = (aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select, aten._unique2)
"""The operations after which the host waits for a value, or for a size that depends on values."""
ACROSS = (aten._to_copy, aten.copy_)
"""The operations whose tensors may lie in two places."""
INDEXED = (aten.index, aten.index_put_, aten._index_put_impl_)
"""The operations that take indices from the host, and wait for them."""
NO_FLOAT64 = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"


class Here:
    """Which device is pretended now."""

    device = torch.device("cuda:0")


class Memory:
    """One allocation on the device; alive as long as a tensor of it is."""


class OnDevice(Tensor):
    """A tensor that says it lies on the device, and holds its values in ``held`` on the CPU."""

    held: Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, held: Tensor, memory: Memory) -> "OnDevice":
        with torch.inference_mode(mode=False):
            made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=INSIDE,
            )
        return made

    def __init__(self, held: Tensor, memory: Memory) -> None:
        self.held, self.memory = held, memory

    @property
    def device(self) -> torch.device:
        return Here.device

    @property
    def is_cuda(self) -> bool:
        return Here.device.type == "cuda"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_options: Any) -> Any:
        raise TypeError(
            f"can't convert {Here.device} device type tensor to numpy: copy the tensor to host memory first"
        )

    def __repr__(self) -> str:
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Graph:
    """What ``torch.cuda.CUDAGraph`` is: operations recorded once, run again at each replay."""

    current: "Graph | None" = None

    def __init__(self) -> None:
        self.operations: list[Callable[[], object]] = []
        self.own: WeakSet[Memory] = WeakSet()
        self.kept: list[Memory] = []  # the graph's own memory lives as long as the graph
        self.read: dict[int, ref[Memory]] = {}

    def sees(self, tensors: list[OnDevice]) -> None:
        for each in tensors:
            if each.memory not in self.own:
                self.read[id(each.memory)] = ref(each.memory)

    def makes(self, memory: Memory) -> None:
        self.own.add(memory)
        self.kept.append(memory)

    def replay(self) -> None:
        if any(each() is None for each in self.read.values()):
            raise RuntimeError("CUDA error: the graph reads memory that was given up since it was captured")
        for operation in self.operations:
            operation()


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on whichever device its tensors lie."""
    flat, shape = tree_flatten((args, kwargs))
    ours = [each for each in flat if isinstance(each, OnDevice)]
    theirs = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, OnDevice)]
    target = next((each for each in flat if isinstance(each, torch.device)), None)
    if not ours and (target is None or target.type != INSIDE.type):
        return func(*args, **kwargs)
    packet = func.overloadpacket
    graph = Graph.current
    crosses = packet in ACROSS and (bool(theirs) or (target is not None and target.type != INSIDE.type))
    hosts = [each for each in theirs if each.dim()]
    if hosts and packet not in ACROSS + INDEXED:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {Here.device} and cpu in {func.name()}"
        )
    if graph is not None and (crosses or hosts or packet in READS_BACK):
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {func.name()}")

    lowered = [
        each.held if isinstance(each, OnDevice) else torch.device("cpu") if isinstance(each, torch.device) else each
        for each in flat
    ]
    places, options = tree_unflatten(lowered, shape)
    written = _written(func, args, kwargs)
    if graph is None:
        result = func(*places, **options)
    else:
        graph.sees(ours)
        result = _captured(graph, func, places, options, writes=bool(written))
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*args, **kwargs)  # the outer tensor's sizes follow
    if written:
        _same_sizes(ours, func)
        return next(iter(written)) if isinstance(result, Tensor) else written
    if crosses and (target is None or target.type != INSIDE.type):
        return result
    return tree_map_only(Tensor, lambda made: _placed(made, ours, graph), result)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that the operation writes to, by its schema."""
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [value] if isinstance(value, Tensor) else list(value or [])
    return found


def _placed(made: Tensor, ours: list[OnDevice], graph: Graph | None) -> OnDevice:
    """The result as a tensor on the device: in the memory of the one it is a view of, else in memory of its own."""
    if Here.device.type == "mps" and made.dtype == torch.float64:
        raise TypeError(NO_FLOAT64)
    at = made.untyped_storage()._cdata
    memory = next((each.memory for each in ours if each.held.untyped_storage()._cdata == at), None)
    if memory is None:
        memory = Memory()
        if graph is not None:
            graph.makes(memory)
    return OnDevice(made, memory)


def _captured(graph: Graph, func: Any, places: Any, options: Any, *, writes: bool) -> Any:
    """Record the operation and run nothing: room for its results is made and filled with NaN."""
    if writes:
        graph.operations.append(lambda: func(*places, **options))
        return places[0] if places else None
    result = func(*places, **options)
    inputs = {each.untyped_storage()._cdata for each in tree_flatten((places, options))[0] if isinstance(each, Tensor)}
    made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
    fresh = [each for each in made if each.untyped_storage()._cdata not in inputs]
    if fresh:

        def again() -> None:
            anew = [each for each in tree_flatten(func(*places, **options))[0] if isinstance(each, Tensor)]
            for room, value in zip(made, anew, strict=True):
                room.copy_(value)

        for each in fresh:
            each.fill_(torch.nan if each.is_floating_point() else 0)
        graph.operations.append(again)
    return result


def _same_sizes(tensors: list[OnDevice], func: Any) -> None:
    for each in tensors:
        assert each.shape == each.held.shape, (
            f"{func.name()}: an operation changed the size of a tensor that it writes to"
        )


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is aten._fused_sdp_choice:
            return 0  # the plain formula, of operations that the mode sees
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # an operation made of others: in inference mode it comes whole
                return func.decompose(*args, **(kwargs or {}))
        return run(func, args, kwargs or {})


class _Numbered(TorchFunctionMode):
    """The device as torch's C++ may hear it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def numbered(value: Any) -> Any:
            if isinstance(value, torch.device):
                return INSIDE if value.type == Here.device.type else value
            return INSIDE if isinstance(value, str) and value in (Here.device.type, str(Here.device)) else value

        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], INSIDE)
        args = tuple(map(numbered, args))
        kwargs = {name: numbered(value) for name, value in (kwargs or {}).items()}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == INSIDE:
            del kwargs["device"]  # they make the tensor behind the mode's back
            return func(*args, **kwargs).to(INSIDE)
        return func(*args, **kwargs)


class _Generator(torch.Generator):
    """A generator that may be asked for on the device, and draws on the CPU."""

    def __new__(cls, device: str | torch.device = "cpu") -> "_Generator":
        return super().__new__(cls)


class _Stream:
    def wait_stream(self, other: "_Stream") -> None:
        """Everything runs in order here."""


class _Event:
    """Everything is done when it is recorded."""

    def __init__(self, **_options: Any) -> None:
        pass

    def record(self) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


@contextmanager
def _on(_stream: _Stream) -> Iterator[None]:
    yield


@contextmanager
def _capturing(graph: Graph) -> Iterator[None]:
    assert Graph.current is None, "a capture inside a capture"
    Graph.current = graph
    try:
        yield
    finally:
        Graph.current = None


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend()


CHANGES: dict[Kind, list[tuple[Any, dict[str, Any]]]] = {
    "cuda": [
        (
            torch.cuda,
            {
                "is_available": lambda: True,
                "_lazy_init": lambda: None,
                "device_count": lambda: 1,
                "current_device": lambda: 0,
                "get_device_name": lambda *_: "a pretended GPU",
                "synchronize": lambda *_: None,
                "Stream": _Stream,
                "current_stream": _Stream,
                "stream": _on,
                "CUDAGraph": Graph,
                "graph": _capturing,
            },
        )
    ],
    "mps": [
        (torch, {"Event": _Event}),
        (torch.backends.mps, {"is_available": lambda: True}),
        (torch.mps, {"synchronize": lambda: None}),
    ],
}
"""What torch says of the device, and of itself, while it is pretended."""


@contextmanager
def pretend_device(kind: Kind) -> Iterator[str]:
    """While it is on, ``device=kind`` is there."""
    _register()
    with ExitStack() as stack:
        for module, values in CHANGES[kind]:
            for name, value in values.items():
                stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(Here, "device", torch.device(kind, 0)))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        stack.enter_context(patch.object(threading.Thread, "run", _in_every_thread(threading.Thread.run)))
        stack.enter_context(_modes())
        yield kind


@contextmanager
def _modes() -> Iterator[None]:
    with _Numbered(), _Dispatch():
        yield


def _in_every_thread(run_thread: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def with_modes(thread: threading.Thread) -> None:
        with _modes():
            run_thread(thread)

    return with_modes

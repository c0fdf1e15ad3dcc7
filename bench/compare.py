#!/usr/bin/env python3
"""Times fa3 beside its peers in one process: PyTorch's cuDNN and FlashAttention-2 attention, and the GEMM ceiling.

The forward pass or, with --op backward, the backward pass: gradients of q, k and v for a given one of o. --dtype e4m3 is the
FP8 forward pass (q, k, v e4m3 with a scale per block of 128 rows, o bf16) beside cuDNN's and fa3's own in f16, in a run of its
own.

Default shapes: the grid of the FlashAttention-3 paper (16,384 tokens in all, hidden size 2048, d 64/128/256, seqlen 512..16384,
full and causal). Every cell's output is checked against a peer's (e4m3: against f32) before it is timed. Method and result
format: docs/benchmarks.md. Needs Python 3.10 and PyTorch 2.8 or later.

Exit status: 0 done, 1 fa3 was wrong or could not run (nothing is written from then on), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import functools
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator

try:
    import torch
except ImportError:
    sys.exit("compare.py: error: needs PyTorch (2.8 or later, with CUDA): python3 -c 'import torch' fails here")
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}
BUDGET_S = {"short": 0.12, "long": 2.0}  # repeats per implementation and cell
MIN_SAMPLE_S = 0.5e-3  # shorter calls are timed in batches of this length, so that the clock's own cost does not show
MAX_RELATIVE_ERROR = 2e-2
# Of e4m3 against f32 on the dequantised values: rounding P to three bits of mantissa alone gives 2.6e-2 on random normal data,
# whatever the length; a block of 128 keys lost gives 8.8e-2 at 16k keys, more at fewer.
MAX_RELATIVE_ERROR_E4M3 = 6e-2
E4M3_MAX = 448.0
E4M3_NARROW = (15.0, 15.0, 1.125)  # the largest values of q, k and v for sums in f16 (fa3_scales.largest)
SCALE_ROWS = 128  # FA3_SCALE_ROWS
OWN_F16 = "own_f16"  # fa3's own f16 kernel, timed beside its e4m3 one; not a peer

Call = Callable[[], None]
PeerCall = Callable[[], "tuple[torch.Tensor, ...]"]  # o, or the gradients of q, k and v; [batch, heads, seqlen, d]


class BenchError(Exception):
    """Ends the run with its message."""


# --- fa3 through its C ABI --------------------------------------------------------------------------------------------


class TensorParam(ctypes.Structure):
    """fa3_tensor of include/fa3/fa3.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("stride", ctypes.c_int64 * 4),
    ]


class ScalesParam(ctypes.Structure):
    """fa3_scales of include/fa3/fa3.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("per_block", ctypes.c_int32),
        ("largest", ctypes.c_float),
        ("stride", ctypes.c_int64 * 3),
    ]


class ForwardParams(ctypes.Structure):
    """fa3_forward_params of include/fa3/fa3.h, in its current size."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("seqlen_q", ctypes.c_int64),
        ("seqlen_k", ctypes.c_int64),
        ("d", ctypes.c_int64),
        ("d_v", ctypes.c_int64),
        ("q", TensorParam),
        ("k", TensorParam),
        ("v", TensorParam),
        ("o", TensorParam),
        ("lse", ctypes.c_void_p),
        ("lse_stride", ctypes.c_int64 * 3),
        ("softmax_scale", ctypes.c_float),
        ("softmax_scale_set", ctypes.c_int32),
        ("sm_margin", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("q_scale", ScalesParam),
        ("k_scale", ScalesParam),
        ("v_scale", ScalesParam),
    ]


class BackwardParams(ctypes.Structure):
    """fa3_backward_params of include/fa3/fa3.h."""

    _fields_ = [
        *ForwardParams._fields_[:11],  # up to d_v
        *((name, TensorParam) for name in ("d_o", "q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        ("lse_stride", ctypes.c_int64 * 3),
        *((name, TensorParam) for name in ("dq", "dk", "dv")),
        ("softmax_scale", ctypes.c_float),
        ("softmax_scale_set", ctypes.c_int32),
        ("sm_margin", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
    ]


Params = ForwardParams | BackwardParams


class Fa3:
    """The shared library."""

    API_VERSION = 1
    DEVICES = {"cuda": 1, "cpu": 2}
    DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3, torch.float32: 4}

    def __init__(self, path: pathlib.Path, device: str, sm_margin: int):
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BenchError(f"--lib: cannot load {path}: {error}") from error
        self._library.fa3_device_available.argtypes = [ctypes.c_int32]
        for op, kind in (("forward", ForwardParams), ("backward", BackwardParams)):
            params, size = ctypes.POINTER(kind), ctypes.c_size_t
            self._call(op, "_workspace_size").argtypes = [params, ctypes.POINTER(size)]
            self._call(op, "_kernel").argtypes = [params, ctypes.POINTER(ctypes.c_char_p)]
            self._call(op).argtypes = [params, ctypes.c_void_p, size, ctypes.c_void_p]
        self._library.fa3_last_error.restype = ctypes.c_char_p
        self._library.fa3_source_hash.restype = ctypes.c_char_p
        self._device = device
        self._sm_margin = sm_margin
        self._require(self._library.fa3_device_available(self.DEVICES[device]))

    @property
    def source_hash(self) -> str:
        return self._library.fa3_source_hash().decode()

    def kernel(self, cell: Cell, inputs: Inputs) -> str:
        """Name of the kernel that runs the cell."""
        name = ctypes.c_char_p()
        params = self._params(cell.op, cell, inputs)
        self._require(self._call(cell.op, "_kernel")(ctypes.byref(params), ctypes.byref(name)))
        return name.value.decode()

    def prepare(self, cell: Cell, inputs: Inputs) -> Call:
        """A call of the cell's pass on the current stream; `inputs` must outlive it. For the backward pass o and lse are
        computed now.
        """
        if cell.op == "backward":
            self._prepare("forward", cell, inputs)()
        return self._prepare(cell.op, cell, inputs)

    def _call(self, op: str, what: str = "") -> Callable:
        return getattr(self._library, f"fa3_{op}{what}")

    def _prepare(self, op: str, cell: Cell, inputs: Inputs) -> Call:
        params = self._params(op, cell, inputs)
        size = ctypes.c_size_t()
        self._require(self._call(op, "_workspace_size")(ctypes.byref(params), ctypes.byref(size)))
        workspace = torch.empty(size.value, dtype=torch.uint8, device=self._device)
        pointer = workspace.data_ptr() or None
        stream = torch.cuda.current_stream().cuda_stream if self._device == "cuda" else None
        run, reference = self._call(op), ctypes.byref(params)

        def call(_workspace: torch.Tensor = workspace) -> None:  # holds the workspace as long as the call
            self._require(run(reference, pointer, size, stream))

        return call

    def _params(self, op: str, cell: Cell, inputs: Inputs) -> Params:
        kind = BackwardParams if op == "backward" else ForwardParams
        q, k, v = inputs.q, inputs.k, inputs.v
        params = kind(
            struct_size=ctypes.sizeof(kind),
            api_version=self.API_VERSION,
            device=self.DEVICES[self._device],
            causal=cell.causal,
            batch=q.shape[0],
            heads=q.shape[2],
            kv_heads=k.shape[2],
            seqlen_q=q.shape[1],
            seqlen_k=k.shape[1],
            d=q.shape[3],
            d_v=v.shape[3],
            sm_margin=self._sm_margin,
        )
        for name in ("q", "k", "v", "o") + (("d_o", "dq", "dk", "dv") if op == "backward" else ()):
            setattr(params, name, self._tensor(getattr(inputs, name)))
        if inputs.lse is not None:
            params.lse = inputs.lse.data_ptr()
            params.lse_stride = (ctypes.c_int64 * 3)(*inputs.lse.stride())
        if inputs.scales is not None:
            for name, scale, largest in zip(("q_scale", "k_scale", "v_scale"), inputs.scales, cell.largest()):
                stride = (ctypes.c_int64 * 3)(*scale.stride())
                setattr(params, name, ScalesParam(data=scale.data_ptr(), per_block=1, largest=largest, stride=stride))
        if op == "backward":
            params.deterministic = cell.deterministic
        return params

    def _tensor(self, x: torch.Tensor) -> TensorParam:
        return TensorParam(data=x.data_ptr(), dtype=self.DTYPES[x.dtype], stride=(ctypes.c_int64 * 4)(*x.stride()))

    def _require(self, status: int) -> None:
        if status != 0:
            raise BenchError(f"fa3 status {status}: {self._library.fa3_last_error().decode()}")


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Grid:
    """Shapes of constant work: batch * seqlen = tokens, heads * d = hidden."""

    tokens: int
    hidden: int
    dims: tuple[int, ...]
    seqlens: tuple[int, ...]
    dtypes: tuple[str, ...]


GRIDS = {
    "cuda": Grid(16384, 2048, (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), ("f16", "bf16")),
    "cpu": Grid(512, 256, (64, 128), (128, 256, 512), ("f32",)),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One pass to time; seqlen_q = seqlen_k = seqlen."""

    dtype: str
    d: int
    d_v: int
    causal: bool
    seqlen: int
    batch: int
    heads: int
    kv_heads: int
    mode: str  # a key of BUDGET_S
    op: str = "forward"  # or backward
    deterministic: bool = False  # fa3's backward pass; its peers are as they are
    narrow: bool = False  # e4m3: its values are at most E4M3_NARROW, not E4M3_MAX

    def largest(self) -> tuple[float, float, float]:
        """Of e4m3: of the values of q, k and v."""
        return E4M3_NARROW if self.narrow else (E4M3_MAX,) * 3

    def flops(self) -> float:
        """2 seqlen^2 (d + d_v) heads batch, half of that if causal; 2.5 times that for the backward pass."""
        forward = 2.0 * self.seqlen**2 * (self.d + self.d_v) * self.heads * self.batch * (0.5 if self.causal else 1.0)
        return forward * (2.5 if self.op == "backward" else 1.0)

    def tensor_bytes(self) -> int:
        """Of q, k, v and o together, and of as many gradients in a backward pass."""
        elements = self.batch * self.seqlen * (self.heads + self.kv_heads) * (self.d + self.d_v)
        if self.dtype == "e4m3":
            elements += self.batch * self.seqlen * self.heads * self.d_v  # o has two bytes
        return elements * DTYPES[self.dtype].itemsize * (2 if self.op == "backward" else 1)

    def row(self) -> dict:
        """As the result file has it."""
        row = {"op": self.op, **{k: v for k, v in dataclasses.asdict(self).items() if k != "op"}}
        if self.d_v == self.d:
            del row["d_v"]
        if not self.deterministic:
            del row["deterministic"]
        if self.dtype != "e4m3":
            del row["narrow"]
        return row

    def __str__(self) -> str:
        d = f"{self.d}" if self.d_v == self.d else f"{self.d},{self.d_v}"
        return (
            f"{self.dtype} d={d} {'causal' if self.causal else 'full'} {self.batch}x{self.seqlen} "
            f"heads {self.heads}/{self.kv_heads} {self.mode}"
            f"{' deterministic' if self.deterministic else ''}{' narrow' if self.narrow else ''}"
        )


# Shapes beside the grid: (d, d_v, causal, seqlen, batch, heads, kv_heads).
Shape = tuple[int, int, bool, int, int, int, int]
SHAPES: dict[str, list[Shape]] = {
    # Grouped queries as in large models, 16,384 tokens.
    "gqa": [(128, 128, c, s, 16384 // s, 64, 8) for s in (2048, 4096, 8192, 16384) for c in (False, True)],
    # One sequence, causal: few tiles, or very long ones.
    "batch1": [
        (d, d, True, s, 1, heads, heads)
        for d in (64, 128)
        for s, heads in ((2048, 16), (4096, 16), (8192, 8), (16384, 4), (32768, 2), (65536, 2), (131072, 2))
    ],
    # The other head dims with rows of their own, 16,384 tokens, 16 heads.
    "dims": [
        (d, d_v, c, s, 16384 // s, 16, 16)
        for d, d_v in ((96, 96), (192, 192), (192, 128))
        for s in (2048, 4096, 8192, 16384)
        for c in (False, True)
    ],
}


def grid_shapes(args: argparse.Namespace, mode: str) -> Iterator[Shape]:
    """The grid with the overrides of the command line. Long mode covers its longest sequences only."""
    grid = GRIDS[args.device]
    seqlens = args.seqlen or grid.seqlens
    for d, causal, seqlen in itertools.product(args.d or grid.dims, args.masks, seqlens):
        if mode == "long" and seqlen != max(seqlens):
            continue
        heads = args.heads or max(1, grid.hidden // d)
        batch = args.batch or max(1, grid.tokens // seqlen)
        yield (d, args.d_v or d, causal, seqlen, batch, heads, args.kv_heads or heads)


def cells(args: argparse.Namespace) -> list[Cell]:
    """Of the sets asked for; those other than the grid are timed in short mode only."""
    result = []
    for mode in ("short", "long") if args.mode == "both" else (args.mode,):
        shapes: list[Shape] = []
        for name in args.set:
            if name == "grid":
                shapes += grid_shapes(args, mode)
            elif mode == "short":
                shapes += [shape for shape in SHAPES[name] if shape[2] in args.masks]
        result += [
            Cell(dtype, *shape, mode, args.op, args.deterministic, dtype == "e4m3" and not args.wide)
            for dtype, shape in itertools.product(args.dtype or GRIDS[args.device].dtypes, shapes)
        ]
    return list(dict.fromkeys(result))


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    backend: SDPBackend


PEERS = {
    "cuda": (Peer("cudnn", SDPBackend.CUDNN_ATTENTION), Peer("fa2", SDPBackend.FLASH_ATTENTION)),
    "cpu": (Peer("torch", SDPBackend.FLASH_ATTENTION),),
}
# Of e4m3, of which PyTorch has no attention: in f16, on the values before they were quantised.
PEERS_E4M3 = {
    "cuda": (Peer("cudnn_f16", SDPBackend.CUDNN_ATTENTION),),
    "cpu": (Peer("torch_f16", SDPBackend.FLASH_ATTENTION),),
}


def peers_of(device: str, dtype: str) -> tuple[Peer, ...]:
    return (PEERS_E4M3 if dtype == "e4m3" else PEERS)[device]


@dataclasses.dataclass
class Inputs:
    """Tensors [batch, seqlen, heads, d], lse [batch, heads, seqlen]; o, lse, dq, dk and dv belong to fa3. d_o to dv are for the
    backward pass, all behind dv for e4m3.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    d_o: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None
    scales: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # of q, k and v, [batch, heads, blocks]
    f16: Inputs | None = None  # what was quantised, and an o of f16

    def results(self, op: str) -> tuple[torch.Tensor, ...]:
        """What a pass writes."""
        return (self.dq, self.dk, self.dv) if op == "backward" else (self.o,)


def quantized(x: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x in e4m3, and its scales [batch, heads, blocks]: the largest |x| of SCALE_ROWS rows of a head becomes `largest`."""
    scale = torch.stack([rows.abs().amax((1, 3)) for rows in x.float().split(SCALE_ROWS, 1)], 2) / largest
    return (x / scale_of_rows(scale, x.shape[1])).to(torch.float8_e4m3fn), scale


def scale_of_rows(scale: torch.Tensor, seqlen: int) -> torch.Tensor:
    """[batch, seqlen, heads, 1]"""
    return scale.transpose(1, 2).repeat_interleave(SCALE_ROWS, 1)[:, :seqlen, :, None]


def make_inputs(cell: Cell, device: str) -> list[Inputs]:
    """Random normal q, k, v (and d_o) and poisoned results; as many sets as it takes to overflow the L2 cache twice."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    sets = 1 if cell.tensor_bytes() >= l2_bytes else min(64, math.ceil(2 * l2_bytes / cell.tensor_bytes()))

    dtype = DTYPES["f16" if cell.dtype == "e4m3" else cell.dtype]

    def normal(heads: int, d: int) -> torch.Tensor:
        return torch.randn(cell.batch, cell.seqlen, heads, d, dtype=dtype, device=device)

    result = []
    for _ in range(sets):
        q, k, v = normal(cell.heads, cell.d), normal(cell.kv_heads, cell.d), normal(cell.kv_heads, cell.d_v)
        inputs = Inputs(q, k, v, q.new_full((*q.shape[:3], cell.d_v), math.nan))
        if cell.dtype == "e4m3":
            values, scales = zip(*map(quantized, (q, k, v), cell.largest()))
            inputs = Inputs(*values, torch.full_like(inputs.o, math.nan, dtype=torch.bfloat16), scales=scales, f16=inputs)
        if cell.op == "backward":
            inputs.d_o = normal(cell.heads, cell.d_v)
            inputs.lse = torch.empty(cell.batch, cell.heads, cell.seqlen, dtype=torch.float32, device=device)
            inputs.dq, inputs.dk, inputs.dv = (torch.full_like(x, math.nan) for x in (q, k, v))
        result.append(inputs)
    return result


# --- one cell ---------------------------------------------------------------------------------------------------------


def peer_attention(inputs: Inputs, cell: Cell, contiguous: bool) -> PeerCall:
    """PyTorch's attention over [batch, heads, seqlen, d]: views of the same memory, or copies in that order. Of the
    backward pass only autograd's backward is the call; the forward pass it needs is done now.
    """
    views = [x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v)]
    q, k, v = [x.contiguous() for x in views] if contiguous else views
    grouped = cell.heads != cell.kv_heads
    if cell.op == "forward":
        return lambda: (scaled_dot_product_attention(q, k, v, is_causal=cell.causal, enable_gqa=grouped),)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = scaled_dot_product_attention(*leaves, is_causal=cell.causal, enable_gqa=grouped)
    d_o = inputs.d_o.transpose(1, 2)
    if contiguous:
        d_o = d_o.contiguous()
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def prepare_peer(peer: Peer, inputs: list[Inputs], cell: Cell) -> list[PeerCall]:
    """The peer's calls, one per input set; [] if it supports the cell in neither memory order."""
    for contiguous in (False, True):
        try:
            with sdpa_kernel(peer.backend), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch lists there why each backend was passed over
                calls = [peer_attention(inputs[0], cell, contiguous)]
                calls[0]()
                calls += [peer_attention(x, cell, contiguous) for x in inputs[1:]]
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            refusal = str(error).splitlines()[0]
            continue
        return calls
    print(f"{peer.name} refuses {cell}: {refusal}", file=sys.stderr)
    return []


def exact_attention(inputs: Inputs, cell: Cell) -> tuple[torch.Tensor]:
    """Of e4m3 inputs: attention in f32 on the dequantised values, [batch, heads, seqlen, d_v]."""
    q, k, v = (
        (x.float() * scale_of_rows(scale, cell.seqlen)).transpose(1, 2)
        for x, scale in zip((inputs.q, inputs.k, inputs.v), inputs.scales)
    )
    k, v = (x.repeat_interleave(cell.heads // cell.kv_heads, 1) for x in (k, v))
    o = q.new_empty(*q.shape[:3], cell.d_v)
    rows = max(1, 2**28 // (cell.heads * cell.seqlen))  # scores of 1 GiB at once: those of all would not fit
    position = torch.arange(cell.seqlen, device=q.device)
    for item, first in itertools.product(range(cell.batch), range(0, cell.seqlen, rows)):
        s = q[item, :, first : first + rows] @ k[item].transpose(1, 2) * cell.d**-0.5
        if cell.causal:
            s.masked_fill_(position > position[first : first + rows, None], -math.inf)
        o[item, :, first : first + rows] = s.softmax(-1) @ v[item]
    return (o,)


def check(
    cell: Cell, inputs: list[Inputs], fa3_calls: list[Call], right_calls: list[PeerCall], allowed: float = MAX_RELATIVE_ERROR
) -> None:
    """Raises BenchError if fa3's results are not those of `right_calls`."""
    for index, (x, fa3_call, right_call) in enumerate(zip(inputs, fa3_calls, right_calls)):
        fa3_call()
        for got, right in zip(x.results(cell.op), right_call()):
            expected = right.transpose(1, 2).float()
            error = (torch.linalg.vector_norm(got.float() - expected) / torch.linalg.vector_norm(expected)).item()
            if not error < allowed:  # a NaN is wrong, too
                raise BenchError(f"{cell}, input set {index}: fa3 is wrong, relative error {error:.3g}, allowed {allowed}")


def cuda_samples(calls: Iterator[Call], batch: int, count: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        for _ in range(batch):
            next(calls)()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) * 1e-3 / batch for start, stop in itertools.pairwise(events)]


def cpu_samples(calls: Iterator[Call], batch: int, count: int) -> list[float]:
    times = [time.perf_counter()]
    for _ in range(count):
        for _ in range(batch):
            next(calls)()
        times.append(time.perf_counter())
    return [(stop - start) / batch for start, stop in itertools.pairwise(times)]


def seconds_per_call(calls: list[Callable], device: str, budget_s: float) -> float:
    """Median time of a call, taking `calls` in turn for about `budget_s` seconds."""
    samples = cuda_samples if device == "cuda" else cpu_samples
    turn = itertools.cycle(calls)
    samples(turn, 1, 3)  # warm-up
    estimate = statistics.median(samples(turn, 1, 5))
    batch = math.ceil(MIN_SAMPLE_S / estimate)
    return statistics.median(samples(turn, batch, max(5, round(budget_s / (batch * estimate)))))


def measure(cell: Cell, fa3: Fa3, device: str, order: random.Random) -> tuple[str, dict[str, float]]:
    """The name of fa3's kernel, and seconds per call of fa3 (of e4m3 in f16, too) and of each peer that supports the cell,
    timed in random order on fresh data.
    """
    inputs = make_inputs(cell, device)
    peer_inputs = [x.f16 or x for x in inputs]
    implementations: dict[str, tuple[list[Callable], contextlib.AbstractContextManager]] = {}
    for peer in peers_of(device, cell.dtype):
        if calls := prepare_peer(peer, peer_inputs, cell):
            implementations[peer.name] = (calls, sdpa_kernel(peer.backend))
    if not implementations:
        raise BenchError(f"{cell}: no peer supports it, so there is nothing to check and compare fa3 with")
    # On peer_inputs: fa3, or of e4m3 its own f16 kernel.
    fa3_calls = [fa3.prepare(cell, x) for x in peer_inputs]
    judge = next(peer for peer in peers_of(device, cell.dtype) if peer.name in implementations)
    with sdpa_kernel(judge.backend):
        check(cell, peer_inputs, fa3_calls, implementations[judge.name][0])
    if cell.dtype == "e4m3":
        implementations[OWN_F16] = (fa3_calls, contextlib.nullcontext())
        fa3_calls = [fa3.prepare(cell, x) for x in inputs]
        exact_calls = [functools.partial(exact_attention, x, cell) for x in inputs]
        check(cell, inputs, fa3_calls, exact_calls, MAX_RELATIVE_ERROR_E4M3)
    implementations["fa3"] = (fa3_calls, contextlib.nullcontext())

    seconds = {}
    for name in order.sample(sorted(implementations), len(implementations)):
        calls, context = implementations[name]
        with context:
            seconds[name] = seconds_per_call(calls, device, BUDGET_S[cell.mode])
    return fa3.kernel(cell, inputs[0]), seconds


# Of a power-limited chip a GEMM is as fast as what ran before it lets it be: so it is measured among the cells.
CEILINGS_PER_ROUND = 3


def measure_ceilings(device: str, e4m3: bool) -> dict[str, float]:
    """Rate of a large GEMM in TFLOP/s, on a GPU with `e4m3` also of one of that, and of a copy in TB/s, bytes read and bytes
    written counted.
    """
    dtype, n, copied = ("f16", 8192, 1 << 30) if device == "cuda" else ("f32", 512, 1 << 24)
    a, b, c = (torch.randn(n, n, dtype=DTYPES[dtype], device=device) for _ in range(3))
    source = torch.randint(256, (copied,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    gemm_s = seconds_per_call([lambda: torch.matmul(a, b, out=c)], device, BUDGET_S["short"])
    copy_s = seconds_per_call([lambda: target.copy_(source)], device, BUDGET_S["short"])
    ceilings = {f"gemm_{dtype}": 2e-12 * n**3 / gemm_s, "copy_tbps": 2e-12 * copied / copy_s}
    if e4m3 and device == "cuda":
        a8, b8 = (x.to(DTYPES["e4m3"]) for x in (a, b))
        one = torch.ones((), device=device)

        def gemm() -> None:  # of b by columns: the only order the tensor core has for e4m3
            torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        ceilings["gemm_e4m3"] = 2e-12 * n**3 / seconds_per_call([gemm], device, BUDGET_S["short"])
    return ceilings


# --- the run and its result -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Measurements:
    """What each round measured: seconds by cell and implementation, and the ceilings; and which kernel fa3 took."""

    seconds: dict[Cell, dict[str, list[float]]] = dataclasses.field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    kernels: dict[Cell, str] = dataclasses.field(default_factory=dict)
    ceilings: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def ceiling(self, name: str) -> float:
        return statistics.median(self.ceilings[name])

    def tflops(self, cell: Cell) -> dict[str, float]:
        """Of each implementation, from the median of the rounds."""
        return {name: cell.flops() / statistics.median(s) * 1e-12 for name, s in self.seconds[cell].items()}


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {os.cpu_count()} threads"


def nvcc_version() -> str:
    """As the nvcc found here says it."""
    if not shutil.which("nvcc"):
        return "unknown"
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return "nvcc " + text.partition("release ")[2].partition(",")[0]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def result(measurements: Measurements, planned: list[Cell], fa3: Fa3, args: argparse.Namespace) -> dict:
    """The result file's content: docs/benchmarks.md."""
    rows = []
    for cell in planned:
        if cell not in measurements.seconds:
            continue
        tflops = {name: rounded(value) for name, value in measurements.tflops(cell).items()}
        own = {OWN_F16: tflops.pop(OWN_F16)} if OWN_F16 in tflops else {}
        rows.append(
            {
                **cell.row(),
                "kernel": measurements.kernels[cell],
                "tflops": tflops.pop("fa3"),
                **own,
                "peers": dict(sorted(tflops.items())),
            }
            | ({"sm_margin": args.sm_margin} if args.sm_margin and args.device == "cuda" else {})
        )
    return {
        "device": device_name(args.device),
        "date": datetime.date.today().isoformat(),
        "source_hash": fa3.source_hash,
        "compiler": args.compiler or (nvcc_version() if args.device == "cuda" else "unknown"),
        "peer_versions": {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()},
        "ceilings": {name: rounded(measurements.ceiling(name)) for name in measurements.ceilings},
        "rows": rows,
    }


def write(path: pathlib.Path, content: dict) -> None:
    """One line per row, so that two results can be compared line by line."""
    head = json.dumps({name: value for name, value in content.items() if name != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in content["rows"])
    path.write_text(f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def require_writable(path: pathlib.Path) -> None:
    """Raises BenchError now rather than after minutes of measuring."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out: cannot create {path.parent}: {error}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BenchError(f"--out: cannot write {path}")


def default_path(
    fa3: Fa3,
    device: str,
    sets: list[str],
    op: str = "forward",
    deterministic: bool = False,
    e4m3: bool = False,
    wide: bool = False,
) -> pathlib.Path:
    """Names the pass, e4m3, and the sets unless it is the grid alone."""
    folder = device_name(device).removeprefix("NVIDIA ").lower().replace(" ", "-") if device == "cuda" else "cpu"
    base = ROOT if (ROOT / "tools" / "source_hash").exists() else pathlib.Path.cwd()  # a source tree, or installed
    named = ("e4m3-" if e4m3 else "") + ("wide-" if wide else "")
    named += "" if sets == ["grid"] else "-".join(sets) + "-"
    named += "deterministic-" if deterministic else ""
    return base / "bench" / "results" / folder / f"{op}-{named}{datetime.date.today()}-{fa3.source_hash[:8]}.json"


def table(measurements: Measurements, planned: list[Cell], device: str) -> str:
    """TFLOP/s, and fa3's as a multiple of each peer's, and of its own f16 kernel's beside e4m3."""
    dtype = planned[0].dtype
    peers = [peer.name for peer in peers_of(device, dtype)]
    others = peers + [OWN_F16] * (dtype == "e4m3")
    gemms = [name for name in measurements.ceilings if name.startswith("gemm_")]
    gemm = f"gemm_{dtype}" if f"gemm_{dtype}" in gemms else gemms[0]
    width = max(9, max(map(len, others)) + 4)
    lines = [
        f"{'TFLOP/s, ' + planned[0].op:44}{'fa3':>9}"
        + "".join(f"{name:>{width}}" for name in others)
        + "".join(f"{'x ' + name:>{width}}" for name in others)
        + f"{'of GEMM':>9}"
    ]
    ratios = []
    for cell in planned:
        if cell not in measurements.seconds:
            lines.append(f"{str(cell):44}not measured: the time was up")
            continue
        rate = measurements.tflops(cell)
        ratios.append(rate["fa3"] / max(rate[p] for p in peers if p in rate))
        rates = [rate.get(name) for name in others]
        lines.append(
            f"{str(cell):44}{rate['fa3']:9.4g}"
            + "".join(f"{r:{width}.4g}" if r else f"{'-':>{width}}" for r in rates)
            + "".join(f"{rate['fa3'] / r:{width}.3f}" if r else f"{'-':>{width}}" for r in rates)
            + f"{rate['fa3'] / measurements.ceiling(gemm):9.0%}"
        )
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"geometric mean of {len(ratios)} cells: {mean:.3f} x the best peer timed")
    lines.append("ceilings: " + ", ".join(f"{name} {measurements.ceiling(name):.3g}" for name in measurements.ceilings))
    return "\n".join(lines)


def run_rounds(
    planned: list[Cell], fa3: Fa3, args: argparse.Namespace, save: Callable[[Measurements], None]
) -> Measurements:
    """All cells, and the ceilings CEILINGS_PER_ROUND times, in fresh random order each round, until rounds or time run
    out; saves after each round.
    """
    order = random.Random(args.seed)
    started = time.monotonic()
    measurements = Measurements()
    for number in range(1, args.rounds + 1):
        done = 0
        tasks = [*planned, *[None] * CEILINGS_PER_ROUND]
        for cell in order.sample(tasks, len(tasks)):
            late = args.budget_s is not None and time.monotonic() - started >= args.budget_s
            if late and measurements.ceilings:
                break
            if cell is None:
                for name, value in measure_ceilings(args.device, args.dtype == ["e4m3"]).items():
                    measurements.ceilings[name].append(value)
            elif not late:
                measurements.kernels[cell], timed = measure(cell, fa3, args.device, order)
                for name, seconds in timed.items():
                    measurements.seconds[cell][name].append(seconds)
                done += 1
        save(measurements)
        elapsed = time.monotonic() - started
        print(f"round {number} of {args.rounds}: {done}/{len(planned)} cells, {elapsed:.0f} s so far", file=sys.stderr)
        if done < len(planned):
            break
    return measurements


def comma_list(kind: Callable) -> Callable[[str], list]:
    return lambda text: [kind(item) for item in text.split(",")]


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be at least 1")
    return value


def not_negative_int(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must not be negative")
    return value


def dtype_name(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(DTYPES)}")
    return text


def set_name(text: str) -> str:
    if text != "grid" and text not in SHAPES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of grid, {', '.join(SHAPES)}")
    return text


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny shapes, one peer")
    parser.add_argument("--op", choices=("forward", "backward"), default="forward", help="the pass (default forward)")
    parser.add_argument("--wide", action="store_true", help="with --dtype e4m3: all values up to 448")
    parser.add_argument("--deterministic", action="store_true", help="with --op backward: fa3's deterministic one")
    parser.add_argument("--lib", type=pathlib.Path, help="default build/gpu/src/libfa3.so; on cpu build/cpu/..")
    parser.add_argument("--out", type=pathlib.Path, help="default bench/results/<device>/<op>-<date>-<hash>.json")
    parser.add_argument(
        "--dtype",
        type=comma_list(dtype_name),
        metavar="T,..",
        help="default f16,bf16; on cpu f32; e4m3: in a run of its own, forward only",
    )
    parser.add_argument(
        "--set",
        type=comma_list(set_name),
        metavar="S,..",
        default=["grid"],
        help="shapes: grid, gqa, batch1, dims; default grid, the only one that the options on shapes change",
    )
    parser.add_argument("--d", type=comma_list(positive_int), metavar="N,..", help="default 64,128,256")
    parser.add_argument("--d-v", type=positive_int, metavar="N", help="head dim of v and o; default: d")
    parser.add_argument("--seqlen", type=comma_list(positive_int), metavar="N,..", help="default 512,1024..16384")
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument("--causal", dest="masks", action="store_const", const=(True,), help="only causal")
    mask.add_argument("--full", dest="masks", action="store_const", const=(False,), help="only without a mask")
    parser.add_argument("--batch", type=positive_int, help="default 16384 / seqlen")
    parser.add_argument("--heads", type=positive_int, help="default 2048 / d")
    parser.add_argument("--kv-heads", type=positive_int, help="a divisor of heads; default: as many")
    parser.add_argument(
        "--mode",
        choices=("short", "long", "both"),
        default="short",
        help="short (default): 0.12 s per implementation and cell; long: 2 s, longest seqlen only",
    )
    parser.add_argument("--rounds", type=positive_int, default=3, help="default 3; the median over them is reported")
    parser.add_argument(
        "--sm-margin", type=not_negative_int, default=0, metavar="N", help="SMs fa3 leaves free, its peers none (default 0)"
    )
    parser.add_argument("--budget-s", type=float, metavar="S", help="start no cell after this many seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the data and the order (default 0)")
    parser.add_argument("--compiler", help="what built the library, for the record; default: the nvcc found here")
    parser.set_defaults(masks=(False, True))
    args = parser.parse_args(argv)
    if args.wide and "e4m3" not in (args.dtype or ()):
        parser.error("--wide is for --dtype e4m3")
    if args.deterministic and args.op != "backward":
        parser.error("--deterministic is for --op backward")
    if "e4m3" in (args.dtype or ()):
        if args.op != "forward":
            parser.error("--dtype e4m3 is for --op forward")
        if set(args.dtype) != {"e4m3"}:
            parser.error("--dtype e4m3 has other peers than the other types: give it a run of its own")
        args.dtype = ["e4m3"]
    others = [name for name in args.set if name != "grid"]
    if others and args.device == "cpu":
        parser.error(f"--set {','.join(others)} is for --device cuda")
    if others and args.mode == "long":
        parser.error(f"--set {','.join(others)} is timed in short mode only")
    if "grid" not in args.set:
        for name in ("d", "d_v", "seqlen", "batch", "heads", "kv_heads"):
            if getattr(args, name) is not None:
                parser.error(f"--{name.replace('_', '-')} changes the grid, which --set {','.join(args.set)} leaves out")
    planned = cells(args)
    if not planned:
        parser.error(f"--set {','.join(args.set)} has no shape with this mask")
    for cell in planned:
        if cell.heads % cell.kv_heads:
            parser.error(f"--kv-heads {cell.kv_heads} does not divide the {cell.heads} heads of d = {cell.d}")
        if args.device == "cuda" and cell.dtype == "f32":
            parser.error("--dtype f32 needs --device cpu")
        if cell.dtype == "e4m3" and (cell.d % 16 or cell.d_v % 16):
            parser.error(f"--dtype e4m3 needs head dims that are multiples of 16, not {cell.d}, {cell.d_v}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        if args.device == "cuda" and not torch.cuda.is_available():
            raise BenchError("PyTorch finds no GPU here; --device cpu times the CPU backend")
        build = "gpu" if args.device == "cuda" else "cpu"
        fa3 = Fa3(args.lib or ROOT / "build" / build / "src" / "libfa3.so", args.device, args.sm_margin)
        e4m3 = args.dtype == ["e4m3"]
        path = args.out or default_path(fa3, args.device, args.set, args.op, args.deterministic, e4m3, args.wide)
        require_writable(path)
        planned = cells(args)
        torch.manual_seed(args.seed)
        with torch.inference_mode() if args.op == "forward" else contextlib.nullcontext():
            measurements = run_rounds(planned, fa3, args, lambda m: write(path, result(m, planned, fa3, args)))
    except BenchError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    print(
        f"{device_name(args.device)}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
        f"sources {fa3.source_hash[:8]}"
    )
    print(table(measurements, planned, args.device))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

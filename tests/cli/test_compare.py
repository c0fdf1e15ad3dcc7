#!/usr/bin/env python3
"""What bench/compare.py plans, refuses and hands to fa3 and its peers, and bench/readme_table.py's table of a file with
shapes beside the grid or of e4m3. PyTorch is stood in for: nothing is timed here.

Usage: test_compare.py ROOT
"""

import contextlib
import dataclasses
import io
import json
import math
import pathlib
import random
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv[1]).resolve()


class Dtype:
    def __init__(self, itemsize: int):
        self.itemsize = itemsize


def stand_in_for_torch() -> None:
    modules = {name: types.ModuleType(name) for name in ("torch", "torch.nn", "torch.nn.attention", "torch.nn.functional")}
    for dtype, itemsize in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float8_e4m3fn", 1)):
        setattr(modules["torch"], dtype, Dtype(itemsize))
    modules["torch"].Tensor = object
    modules["torch.nn.attention"].SDPBackend = types.SimpleNamespace(CUDNN_ATTENTION=1, FLASH_ATTENTION=2)
    modules["torch.nn.attention"].sdpa_kernel = None
    modules["torch.nn.functional"].scaled_dot_product_attention = None
    sys.modules.update(modules)


stand_in_for_torch()
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import readme_table  # noqa: E402


class Plan(unittest.TestCase):
    def cells(self, *argv: str) -> list:
        return compare.cells(compare.parse(list(argv)))

    def refused(self, *argv: str) -> str:
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit) as exit_:
            compare.parse(list(argv))
        self.assertEqual(exit_.exception.code, 2)
        return stderr.getvalue()

    def test_the_grid_is_that_of_the_paper(self) -> None:
        cells = self.cells("--dtype", "f16")
        self.assertEqual(len(cells), 36)
        for cell in cells:
            self.assertEqual((cell.batch * cell.seqlen, cell.heads * cell.d, cell.d_v), (16384, 2048, cell.d))
        self.assertEqual(len(self.cells("--dtype", "f16", "--mode", "both")), 42)

    def test_the_other_sets(self) -> None:
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "gqa")), 8)
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "batch1")), 14)
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "dims")), 24)
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "grid,gqa,batch1,dims")), 36 + 8 + 14 + 24)
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "dims", "--causal")), 12)

    def test_a_cell_asked_for_twice_is_timed_once(self) -> None:
        self.assertEqual(len(self.cells("--dtype", "f16", "--set", "gqa,gqa")), 8)
        both = self.cells("--dtype", "f16", "--set", "grid,gqa", "--d", "128", "--heads", "64", "--kv-heads", "8")
        self.assertEqual(len(both), len(set(both)))

    def test_flops_count_d_and_d_v(self) -> None:
        cell = next(c for c in self.cells("--set", "dims", "--dtype", "f16") if c.d_v == 128 and not c.causal)
        self.assertEqual(cell.flops(), 2 * cell.seqlen**2 * (192 + 128) * cell.heads * cell.batch)

    def test_the_backward_pass_counts_two_and_a_half_times(self) -> None:
        forward = self.cells("--dtype", "f16", "--d", "128", "--causal")
        backward = self.cells("--dtype", "f16", "--d", "128", "--causal", "--op", "backward")
        self.assertEqual([2.5 * cell.flops() for cell in forward], [cell.flops() for cell in backward])
        self.assertEqual([2 * cell.tensor_bytes() for cell in forward], [cell.tensor_bytes() for cell in backward])
        self.assertEqual(len(self.cells("--dtype", "f16", "--op", "backward")), 36)

    def test_rows_are_in_the_documented_format(self) -> None:
        row = self.cells("--dtype", "f16", "--d", "128", "--seqlen", "512", "--full")[0].row()
        self.assertEqual(row, {"op": "forward", "dtype": "f16", "d": 128, "causal": False, "seqlen": 512, "batch": 32,
                               "heads": 16, "kv_heads": 16, "mode": "short"})
        row = self.cells("--dtype", "f16", "--d", "192", "--d-v", "128", "--seqlen", "512", "--op", "backward",
                         "--deterministic")[0].row()
        self.assertEqual((row["op"], row["d_v"], row["deterministic"]), ("backward", 128, True))

    def test_deterministic_is_of_the_backward_pass(self) -> None:
        self.assertIn("--deterministic is for --op backward", self.refused("--deterministic"))

    def test_the_parameters_have_the_size_of_the_header(self) -> None:
        self.assertEqual(compare.ctypes.sizeof(compare.ForwardParams), 432)
        self.assertEqual(compare.ForwardParams.q_scale.offset, 312)
        self.assertEqual(compare.ctypes.sizeof(compare.ScalesParam), 40)
        self.assertEqual(compare.ctypes.sizeof(compare.BackwardParams), 504)

    def test_what_a_set_does_not_take_is_refused(self) -> None:
        self.assertIn("short mode only", self.refused("--set", "gqa", "--mode", "long"))
        self.assertIn("no shape with this mask", self.refused("--set", "batch1", "--full"))
        self.assertIn("--d changes the grid", self.refused("--set", "gqa", "--d", "64"))
        self.assertIn("--kv-heads changes the grid", self.refused("--set", "batch1", "--kv-heads", "1"))
        self.assertIn("--device cuda", self.refused("--set", "gqa", "--device", "cpu"))
        self.assertIn("'gga' is not one of", self.refused("--set", "gga"))
        self.assertIn("does not divide", self.refused("--kv-heads", "3"))

    def test_e4m3_has_the_shapes_of_16_bits(self) -> None:
        cells = self.cells("--dtype", "e4m3")
        self.assertEqual(len(cells), 36)
        # q, k and v have one byte, o has two.
        self.assertEqual({cell.tensor_bytes() for cell in cells}, {5 * 16384 * 2048})
        self.assertEqual([cell.flops() for cell in cells], [cell.flops() for cell in self.cells("--dtype", "f16")])
        self.assertEqual(len(self.cells("--dtype", "e4m3", "--set", "gqa,batch1,dims")), 8 + 14 + 24)
        self.assertEqual((cells[0].row()["dtype"], cells[0].row()["narrow"]), ("e4m3", True))
        self.assertFalse(any(cell.narrow for cell in self.cells("--dtype", "e4m3", "--wide")))
        self.assertNotIn("narrow", self.cells("--dtype", "f16")[0].row())

    def test_what_e4m3_does_not_take_is_refused(self) -> None:
        self.assertIn("e4m3 is for --op forward", self.refused("--dtype", "e4m3", "--op", "backward"))
        self.assertIn("a run of its own", self.refused("--dtype", "f16,e4m3"))
        self.assertIn("--wide is for --dtype e4m3", self.refused("--dtype", "f16", "--wide"))
        self.assertIn("multiples of 16, not 24, 24", self.refused("--dtype", "e4m3", "--d", "24"))
        self.assertIn("multiples of 16, not 64, 40", self.refused("--dtype", "e4m3", "--d", "64", "--d-v", "40"))

    def test_the_default_file_names_the_sets(self) -> None:
        fa3 = types.SimpleNamespace(source_hash="0123456789abcdef")
        grid = compare.default_path(fa3, "cpu", ["grid"]).name
        self.assertRegex(grid, r"^forward-\d{4}-\d\d-\d\d-01234567\.json$")
        self.assertIn("forward-gqa-dims-", compare.default_path(fa3, "cpu", ["gqa", "dims"]).name)
        self.assertRegex(compare.default_path(fa3, "cpu", ["grid"], "backward").name, r"^backward-\d{4}-")
        self.assertIn("backward-gqa-deterministic-", compare.default_path(fa3, "cpu", ["gqa"], "backward", True).name)
        self.assertRegex(compare.default_path(fa3, "cpu", ["grid"], e4m3=True).name, r"^forward-e4m3-\d{4}-")
        self.assertRegex(compare.default_path(fa3, "cpu", ["grid"], e4m3=True, wide=True).name, r"^forward-e4m3-wide-\d")
        self.assertIn("forward-e4m3-gqa-", compare.default_path(fa3, "cpu", ["gqa"], e4m3=True).name)


class Tensor:
    """As much of a tensor as the C parameters need."""

    def __init__(self, address: int, dtype: str, *shape: int):
        self.address = address
        self.dtype = getattr(sys.modules["torch"], dtype)
        self.shape = shape

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple:
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))


class E4m3(unittest.TestCase):
    CELL = compare.Cell("e4m3", 128, 64, True, 300, 2, 4, 2, "short")

    def inputs(self) -> compare.Inputs:
        shapes = ((2, 300, 4, 128), (2, 300, 2, 128), (2, 300, 2, 64), (2, 300, 4, 64))
        values = [Tensor(16 * i, "float8_e4m3fn" if i < 4 else "bfloat16", *s) for i, s in enumerate(shapes, 1)]
        scales = tuple(Tensor(100 + i, "float32", 2, heads, 3) for i, heads in enumerate((4, 2, 2)))
        return compare.Inputs(*values, scales=scales, f16=compare.Inputs(*(Tensor(16, "float16", *s) for s in shapes)))

    def fa3(self) -> compare.Fa3:
        fa3 = compare.Fa3.__new__(compare.Fa3)  # no library
        fa3._device, fa3._sm_margin = "cuda", 0
        return fa3

    def test_scales_per_block_are_handed_over(self) -> None:
        params = self.fa3()._params("forward", self.CELL, self.inputs())
        self.assertEqual(params.struct_size, 432)
        self.assertEqual([params.q.dtype, params.k.dtype, params.v.dtype, params.o.dtype], [3, 3, 3, 2])
        for index, (scale, heads) in enumerate(((params.q_scale, 4), (params.k_scale, 2), (params.v_scale, 2))):
            self.assertEqual((scale.data, scale.per_block, scale.largest), (100 + index, 1, 448))
            self.assertEqual(list(scale.stride), [3 * heads, 3, 1])

    def test_narrow_cells_say_so(self) -> None:
        params = self.fa3()._params("forward", dataclasses.replace(self.CELL, narrow=True), self.inputs())
        self.assertEqual([params.q_scale.largest, params.k_scale.largest, params.v_scale.largest], [15, 15, 1.125])

    def test_the_f16_beside_it_has_none(self) -> None:
        params = self.fa3()._params("forward", self.CELL, self.inputs().f16)
        self.assertEqual([params.q.dtype, params.o.dtype], [1, 1])
        self.assertEqual([params.q_scale.data, params.k_scale.data, params.v_scale.data], [None] * 3)

    def measured(self, cell: compare.Cell, inputs: compare.Inputs) -> tuple:
        """What measure() timed, and its checks as (inputs, calls, allowed error)."""
        fa3 = types.SimpleNamespace(
            prepare=lambda cell, x: ("fa3", x), kernel=lambda cell, x: f"kernel of {x.q.dtype.itemsize}"
        )
        checks = []

        def check(cell: compare.Cell, x: list, calls: list, right: list, allowed: float = compare.MAX_RELATIVE_ERROR) -> None:
            checks.append((x[0], calls[0], allowed))

        with (
            mock.patch.object(compare, "make_inputs", lambda cell, device: [inputs]),
            mock.patch.object(compare, "prepare_peer", lambda peer, inputs, cell: [(peer.name, x) for x in inputs]),
            mock.patch.object(compare, "sdpa_kernel", lambda backend: contextlib.nullcontext()),
            mock.patch.object(compare, "check", check),
            mock.patch.object(compare, "seconds_per_call", lambda calls, device, budget: calls[0]),
        ):
            kernel, timed = compare.measure(cell, fa3, "cuda", random.Random(0))
        return kernel, timed, checks

    def test_peers_and_its_own_f16_get_what_was_quantised(self) -> None:
        inputs = self.inputs()
        kernel, timed, checks = self.measured(self.CELL, inputs)
        self.assertEqual(kernel, "kernel of 1")
        f16 = inputs.f16
        self.assertEqual(timed, {"fa3": ("fa3", inputs), "own_f16": ("fa3", f16), "cudnn_f16": ("cudnn_f16", f16)})
        self.assertEqual(checks, [(inputs.f16, ("fa3", inputs.f16), 2e-2), (inputs, ("fa3", inputs), 6e-2)])

    def test_other_types_have_neither(self) -> None:
        inputs = self.inputs().f16
        cell = dataclasses.replace(self.CELL, dtype="f16")
        kernel, timed, checks = self.measured(cell, inputs)
        self.assertEqual(kernel, "kernel of 2")
        self.assertEqual(timed, {name: (name, inputs) for name in ("fa3", "cudnn", "fa2")})
        self.assertEqual(checks, [(inputs, ("fa3", inputs), 2e-2)])

    def test_its_own_f16_is_no_peer(self) -> None:
        measurements = compare.Measurements()
        flops = self.CELL.flops() * 1e-12
        measurements.seconds[self.CELL] |= {"fa3": [flops / 800], "own_f16": [flops / 500], "cudnn_f16": [flops / 400]}
        measurements.kernels[self.CELL] = "e4m3_d128"
        measurements.ceilings |= {"gemm_f16": [700.0], "copy_tbps": [4.0], "gemm_e4m3": [1000.0]}
        text = compare.table(measurements, [self.CELL], "cuda")
        self.assertIn("geometric mean of 1 cells: 2.000 x the best peer timed", text)
        self.assertIn("1.600      80%", text)
        torch = sys.modules["torch"]
        with (
            mock.patch.object(torch, "__version__", "2", create=True),
            mock.patch.object(torch, "backends", mock.Mock(**{"cudnn.version.return_value": 9}), create=True),
            mock.patch.object(compare, "device_name", lambda device: "X"),
        ):
            args = types.SimpleNamespace(device="cuda", sm_margin=0, compiler="c")
            result = compare.result(measurements, [self.CELL], types.SimpleNamespace(source_hash="0"), args)
        row = result["rows"][0]
        self.assertEqual((row["dtype"], row["kernel"], row["tflops"], row["own_f16"]), ("e4m3", "e4m3_d128", 800, 500))
        self.assertEqual(row["peers"], {"cudnn_f16": 400})
        self.assertEqual(result["ceilings"]["gemm_e4m3"], 1000)


class Rounds(unittest.TestCase):
    CELLS = [f"cell {i}" for i in range(20)]

    def run_rounds(self, budget_s: float | None) -> tuple[compare.Measurements, list]:
        """What a run of two rounds measured, and in which order; None stands for the ceilings."""
        order = []
        args = types.SimpleNamespace(seed=3, rounds=2, device="cuda", dtype=["e4m3"], budget_s=budget_s)

        def ceilings(device: str, e4m3: bool) -> dict[str, float]:
            order.append(None)
            return {"gemm_e4m3": 1.0}

        def measure(cell: str, *_) -> tuple[str, dict[str, float]]:
            order.append(cell)
            return "kernel", {"fa3": 1.0}

        with (
            mock.patch.object(compare, "measure_ceilings", ceilings),
            mock.patch.object(compare, "measure", measure),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return compare.run_rounds(self.CELLS, None, args, lambda measurements: None), order

    def test_ceilings_are_measured_among_the_cells(self) -> None:
        measurements, order = self.run_rounds(None)
        self.assertEqual(len(measurements.ceilings["gemm_e4m3"]), 2 * compare.CEILINGS_PER_ROUND)
        self.assertTrue(all(len(measurements.seconds[cell]["fa3"]) == 2 for cell in self.CELLS))
        places = [place for place, cell in enumerate(order) if cell is None]
        self.assertNotEqual(places, list(range(len(places))))
        self.assertGreater(places[-1] - places[0], len(order) // 2)

    def test_there_are_ceilings_though_time_is_up(self) -> None:
        measurements, order = self.run_rounds(0)
        self.assertEqual(order, [None])
        self.assertEqual(measurements.ceilings["gemm_e4m3"], [1.0])


class ReadmeTable(unittest.TestCase):
    def table(self, rows: list, *options: str) -> str:
        result = {"device": "X", "date": "2026-01-01", "source_hash": "0" * 64, "compiler": "c",
                  "ceilings": {"gemm_f16": 700, "gemm_e4m3": 1250}, "rows": rows}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "result.json"
            file.write_text(json.dumps(result))
            out = io.StringIO()
            with mock.patch.object(sys, "argv", ["readme_table.py", str(file), *options]), contextlib.redirect_stdout(out):
                readme_table.main()
        return out.getvalue()

    def row(self, tflops: float, **changes: object) -> dict:
        return {"op": "forward", "dtype": "f16", "d": 128, "causal": False, "seqlen": 2048, "batch": 8, "heads": 16,
                "kv_heads": 16, "tflops": tflops, "peers": {"cudnn": 100}, **changes}

    def test_only_the_grid_is_shown(self) -> None:
        text = self.table([self.row(150), self.row(777, heads=64, kv_heads=8), self.row(888, sm_margin=8),
                           self.row(999, seqlen=131072, batch=1, heads=2, kv_heads=2, causal=True)])
        self.assertIn("| 128 | full | 150 (1.50) |", text)
        for other in ("777", "888", "999", "131072"):
            self.assertNotIn(other, text)

    def test_a_missing_cell_is_a_gap(self) -> None:
        text = self.table([self.row(150), self.row(120, causal=True, seqlen=4096, batch=4)])
        self.assertIn("| 128 | full | 150 (1.50) |  |", text)

    def test_e4m3_is_beside_f16(self) -> None:
        rows = [self.row(150), self.row(800, dtype="e4m3", own_f16=600, peers={"cudnn_f16": 500})]
        text = self.table(rows, "--dtype", "e4m3")
        self.assertIn("| 128 | full | 800 (1.60) |", text)
        self.assertIn("TFLOP/s (x cuDNN in f16). In the same run an 8192^3 e4m3 GEMM gave 1250 TFLOP/s.", text)
        text = self.table(rows)
        self.assertIn("| 128 | full | 150 (1.50) |", text)
        self.assertIn("TFLOP/s (x cuDNN). In the same run an 8192^3 f16 GEMM gave 700 TFLOP/s.", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])

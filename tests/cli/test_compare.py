#!/usr/bin/env python3
"""What bench/compare.py plans and refuses, and bench/readme_table.py's table of a file with shapes beside the grid.
PyTorch is stood in for: nothing is timed here.

Usage: test_compare.py ROOT
"""

import contextlib
import io
import json
import pathlib
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
    for dtype in ("float16", "bfloat16", "float32"):
        setattr(modules["torch"], dtype, Dtype(4 if dtype == "float32" else 2))
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
        self.assertEqual(compare.ctypes.sizeof(compare.ForwardParams), 312)
        self.assertEqual(compare.ctypes.sizeof(compare.BackwardParams), 504)

    def test_what_a_set_does_not_take_is_refused(self) -> None:
        self.assertIn("short mode only", self.refused("--set", "gqa", "--mode", "long"))
        self.assertIn("no shape with this mask", self.refused("--set", "batch1", "--full"))
        self.assertIn("--d changes the grid", self.refused("--set", "gqa", "--d", "64"))
        self.assertIn("--kv-heads changes the grid", self.refused("--set", "batch1", "--kv-heads", "1"))
        self.assertIn("--device cuda", self.refused("--set", "gqa", "--device", "cpu"))
        self.assertIn("'gga' is not one of", self.refused("--set", "gga"))
        self.assertIn("does not divide", self.refused("--kv-heads", "3"))

    def test_the_default_file_names_the_sets(self) -> None:
        fa3 = types.SimpleNamespace(source_hash="0123456789abcdef")
        grid = compare.default_path(fa3, "cpu", ["grid"]).name
        self.assertRegex(grid, r"^forward-\d{4}-\d\d-\d\d-01234567\.json$")
        self.assertIn("forward-gqa-dims-", compare.default_path(fa3, "cpu", ["gqa", "dims"]).name)
        self.assertRegex(compare.default_path(fa3, "cpu", ["grid"], "backward").name, r"^backward-\d{4}-")
        self.assertIn("backward-gqa-deterministic-", compare.default_path(fa3, "cpu", ["gqa"], "backward", True).name)


class ReadmeTable(unittest.TestCase):
    def table(self, rows: list) -> str:
        result = {"device": "X", "date": "2026-01-01", "source_hash": "0" * 64, "compiler": "c",
                  "ceilings": {"gemm_f16": 1}, "rows": rows}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "result.json"
            file.write_text(json.dumps(result))
            out = io.StringIO()
            with mock.patch.object(sys, "argv", ["readme_table.py", str(file)]), contextlib.redirect_stdout(out):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])

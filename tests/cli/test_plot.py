#!/usr/bin/env python3
"""`fa3 bench --plot` and `fa3 accuracy --plot` on the committed result files, on spoiled ones, and without Matplotlib.

Usage: test_plot.py FA3 ROOT [TEST..]; exit status 77 if no python3 here has Matplotlib, which all but WithoutMatplotlib need.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

FA3 = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(sys.argv[2]).resolve()
RESULTS = ROOT / "bench/results/h200"
NEWEST = max(RESULTS.glob("forward-2*.json"))
NEWEST_ACCURACY = max(RESULTS.glob("accuracy-2*.json"))
NEWEST_CONTEXT = max(RESULTS.glob("accuracy-context-2*.json"))
PATHS = [os.environ["PATH"], f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"]


def path_with_matplotlib() -> "str | None":
    for path in PATHS:
        if subprocess.run(["python3", "-c", "import matplotlib"], env={**os.environ, "PATH": path},
                          capture_output=True).returncode == 0:
            return path
    return None


class PlotTest(unittest.TestCase):
    command, script = "bench", "plot.py"

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)
        self.pictures = self.folder / "pictures"

    def plot(self, file: pathlib.Path, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([FA3, self.command, "--plot", file, "--out", self.pictures], capture_output=True, text=True,
                              env={**os.environ, **environment})

    def names(self) -> "list[str]":
        return sorted(path.name for path in self.pictures.iterdir()) if self.pictures.exists() else []


class WithMatplotlib(PlotTest):
    @classmethod
    def setUpClass(cls) -> None:
        cls.path = path_with_matplotlib()
        if cls.path is None:
            print("no python3 with Matplotlib was found")
            sys.exit(77)

    def draw(self, result: object) -> subprocess.CompletedProcess:
        file = self.folder / "result.json"
        file.write_text(result if isinstance(result, str) else json.dumps(result))
        return self.plot(file, PATH=self.path)

    def plotted(self, file: pathlib.Path) -> dict:
        """A result file, of which the command has drawn the pictures."""
        outcome = self.plot(file, PATH=self.path)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        return json.loads(file.read_text())

    def texts(self, name: str) -> "list[str]":
        root = ElementTree.parse(self.pictures / name).getroot()
        return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]

    def expect_refused(self, result: object, words: str) -> None:
        outcome = self.draw(result)
        self.assertEqual(outcome.returncode, 2, outcome)
        self.assertIn(f"{self.script}: error: {self.folder / 'result.json'}: ", outcome.stderr)
        self.assertIn(words, outcome.stderr)
        self.assertNotIn("Traceback", outcome.stderr)
        self.assertEqual(self.names(), [])


class Plot(WithMatplotlib):
    def test_every_committed_result_of_the_grid_is_drawn_whole(self) -> None:
        files = sorted(file for name in ("", "bf16-", "e4m3-") for file in RESULTS.glob(f"forward-{name}2*.json"))
        self.assertGreaterEqual(len(files), 2)
        for file in files:
            with self.subTest(file.name):
                result = self.plotted(file)
                for dtype in {row["dtype"] for row in result["rows"]}:
                    texts = self.texts(f"forward_h200_{dtype}.svg")
                    e4m3 = dtype == "e4m3"
                    peers = ("fa3 in f16", "cuDNN in f16") if e4m3 else ("cuDNN", "FlashAttention-2")
                    gemm = "e4m3" if e4m3 else "f16"
                    for label in ("fa3", *peers, "512", "1k", "2k", "4k", "8k", "16k", "TFLOP/s",
                                  f"GEMM in {gemm}, same run: {result['ceilings'][f'gemm_{gemm}']:.4g}",
                                  f"Attention forward, {dtype}, NVIDIA H200",
                                  "16,384 tokens, hidden size 2048; "
                                  f"{result['date']}, sources {result['source_hash'][:12]}"):
                        self.assertIn(label, texts)
                    for d in (64, 128, 256):
                        for mask in ("full", "causal"):
                            self.assertIn(f"d = {d}, {mask}", texts)
                    self.assertNotIn("not measured", texts)
                    png = (self.pictures / f"forward_h200_{dtype}.png").read_bytes()
                    self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
                    width, height = struct.unpack(">II", png[16:24])
                    self.assertGreater(width, 1000)
                    self.assertGreater(height, 500)

    def test_the_same_file_gives_the_same_svg(self) -> None:
        self.plot(NEWEST, PATH=self.path)
        before = (self.pictures / "forward_h200_f16.svg").read_bytes()
        self.plot(NEWEST, PATH=self.path)
        self.assertEqual((self.pictures / "forward_h200_f16.svg").read_bytes(), before)

    def test_points_are_where_the_figures_say(self) -> None:
        # fa3 at 512 as fast as the GEMM: its first marker has the height of the dashed line.
        result = json.loads(NEWEST.read_text())
        rows = [row for row in result["rows"] if row["d"] == 64 and not row["causal"] and row["mode"] == "short"]
        result["rows"] = rows
        rows[0]["tflops"] = result["ceilings"]["gemm_f16"]
        self.assertEqual(self.draw(result).returncode, 0)
        heights = self.heights("forward_h200_f16.svg")
        self.assertAlmostEqual(heights["fa3"], heights["gemm"], places=3)

    def heights(self, name: str) -> "dict[str, float]":
        """Of the first point of a line in the first panel."""
        colours = {"#0072b2": "fa3", "#56b4e9": "fa3 in f16", "#555555": "gemm"}
        result = {}
        for path in ElementTree.parse(self.pictures / name).getroot().iter("{http://www.w3.org/2000/svg}path"):
            if path.get("clip-path"):
                line = next((line for colour, line in colours.items() if colour in path.get("style", "")), "")
                result.setdefault(line, float(path.get("d").split()[2]))
        return result

    def test_e4m3_is_beside_f16(self) -> None:
        result = json.loads(NEWEST.read_text())
        result["ceilings"]["gemm_e4m3"] = 1250.4
        result["rows"] = [{**row, "dtype": "e4m3", "tflops": 2 * row["tflops"], "own_f16": row["tflops"],
                           "peers": {"cudnn_f16": row["peers"]["cudnn"]}} for row in result["rows"] if row["mode"] == "short"]
        result["rows"].sort(key=lambda row: (row["causal"], row["d"], row["seqlen"]))
        result["rows"][0]["own_f16"] = 1250.4
        self.assertEqual(self.draw(result).returncode, 0)
        self.assertEqual(self.names(), ["forward_h200_e4m3.png", "forward_h200_e4m3.svg"])
        texts = self.texts("forward_h200_e4m3.svg")
        for label in ("fa3", "fa3 in f16", "cuDNN in f16", "GEMM in e4m3, same run: 1250", "Attention forward, e4m3, NVIDIA H200"):
            self.assertIn(label, texts)
        self.assertNotIn("cuDNN", texts)
        heights = self.heights("forward_h200_e4m3.svg")
        self.assertAlmostEqual(heights["fa3 in f16"], heights["gemm"], places=3)
        self.assertGreater(heights["fa3"], heights["gemm"])  # SVG counts from the top

    def test_further_peers_and_carried_ones_are_drawn(self) -> None:
        result = json.loads(NEWEST.read_text())
        for row in result["rows"]:
            row["peers"] |= {"fa3 (carried)": 500.0, "other": 400.0}
        self.assertEqual(self.draw(result).returncode, 0)
        texts = self.texts("forward_h200_f16.svg")
        for label in ("fa3", "cuDNN", "FlashAttention-2", "FlashAttention-3, carried", "other"):
            self.assertIn(label, texts)

    def test_missing_cells_are_gaps(self) -> None:
        result = json.loads(NEWEST.read_text())
        result["rows"] = [row for row in result["rows"]
                          if not (row["d"] == 256 and row["causal"]) and not (row["d"] == 64 and row["seqlen"] == 2048)]
        result["ceilings"] = {}
        del result["rows"][0]["peers"]["cudnn"]
        outcome = self.draw(result)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        texts = self.texts("forward_h200_f16.svg")
        self.assertEqual(texts.count("not measured"), 1)
        self.assertFalse([text for text in texts if text.startswith("GEMM")])

    def test_a_picture_for_each_dtype_and_other_rows_are_left_out(self) -> None:
        result = json.loads(NEWEST.read_text())
        short = [row for row in result["rows"] if row["mode"] == "short"]
        result["rows"] = short + [{**row, "dtype": "bf16"} for row in short]
        result["rows"] += [{**short[0], "kv_heads": 1}, {**short[0], "batch": 1}, {**short[0], "mode": "long"},
                           {**short[0], "sm_margin": 8}]
        outcome = self.draw(result)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(self.names(), [f"forward_h200_{dtype}.{kind}" for dtype in ("bf16", "f16")
                                        for kind in ("png", "svg")])
        self.assertIn(f"4 of {len(result['rows'])} rows are not of the grid", outcome.stdout)

    def test_each_pass_has_its_picture(self) -> None:
        result = json.loads(NEWEST.read_text())
        short = [row for row in result["rows"] if row["mode"] == "short"]
        backward = [{**row, "op": "backward"} for row in short]
        result["rows"] = short + backward + [{**row, "deterministic": True} for row in backward]
        outcome = self.draw(result)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(self.names(), [f"{op}_h200_f16.{kind}" for op in ("backward", "forward")
                                        for kind in ("png", "svg")])
        self.assertIn(f"{len(backward)} of {len(result['rows'])} rows are not of the grid", outcome.stdout)
        self.assertIn("Attention backward, f16, NVIDIA H200", self.texts("backward_h200_f16.svg"))
        result["rows"] = backward
        self.assertEqual(self.draw(result).returncode, 0)
        result["rows"] = [{**row, "deterministic": True} for row in backward]
        self.assertIn("holds no short measurement", self.draw(result).stderr)

    def test_files_that_are_no_results(self) -> None:
        good = json.loads(NEWEST.read_text())
        self.expect_refused("{\"device\": ", "is not JSON")
        self.expect_refused([], "the file is []; it must be an object")
        self.expect_refused({name: good[name] for name in good if name != "date"}, "has no 'date'")
        self.expect_refused({**good, "rows": {}}, "rows is {}; it must be a list")
        self.expect_refused({**good, "rows": []}, "holds no short measurement")
        self.expect_refused({**good, "ceilings": {"gemm_f16": 0}}, "ceilings.gemm_f16 is 0; it must be a positive number")
        row = good["rows"][0]
        for spoiled, words in (({name: row[name] for name in row if name != "seqlen"}, "rows[1] has no 'seqlen'"),
                               ({**row, "tflops": "fast"}, 'rows[1].tflops is "fast"; it must be a positive number'),
                               ({**row, "tflops": float("nan")}, "rows[1].tflops is NaN; it must be a positive number"),
                               ({**row, "d": -8}, "rows[1].d is -8; it must be a positive integer"),
                               ({**row, "causal": 1}, "rows[1].causal is 1; it must be true or false"),
                               ({**row, "own_f16": 0}, "rows[1].own_f16 is 0; it must be a positive number"),
                               ({**row, "peers": {"cudnn": None}}, "rows[1].peers.cudnn is null")):
            self.expect_refused({**good, "rows": [row, spoiled]}, words)
        missing = self.plot(self.folder / "missing.json", PATH=self.path)
        self.assertEqual(missing.returncode, 2)
        self.assertIn("missing.json: cannot be read: No such file", missing.stderr)

    def test_a_folder_that_cannot_be_written(self) -> None:
        self.pictures.write_text("a file")
        outcome = self.plot(NEWEST, PATH=self.path)
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("plot.py: error: --out: ", outcome.stderr)


class AccuracyPlot(WithMatplotlib):
    command, script = "accuracy", "plot_accuracy.py"

    def shapes(self, name: str, colour: str) -> "list[list[tuple[float, float]]]":
        """The corners of each bar or line of a colour, from the SVG's top left."""
        found = []
        for path in ElementTree.parse(self.pictures / name).getroot().iter("{http://www.w3.org/2000/svg}path"):
            if path.get("clip-path") and colour in path.get("style", ""):
                numbers = [float(word) for word in path.get("d").split() if word not in "MLz"]
                found.append(list(zip(numbers[::2], numbers[1::2])))
        return found

    def test_every_committed_result_is_drawn(self) -> None:
        files = sorted(RESULTS.glob("accuracy-*.json"))
        self.assertGreaterEqual(len(files), 2)
        for file in files:
            with self.subTest(file.name):
                result = self.plotted(file)
                context = "context" in result
                name = "accuracy_context_h200" if context else "accuracy_h200"
                texts = self.texts(f"{name}.svg")
                self.assertTrue((self.pictures / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n"))
                wanted = ["Error of O over the context, NVIDIA H200", "FP8, V = 1", "f16, V = 1", "FP8, V ~ N(0, 1) + 1",
                          "f16, V ~ N(0, 1) + 1", "1k", "256k", "keys"] if context else [
                          "Error of O against fp64, NVIDIA H200", "measured", "FlashAttention-3 paper", "RMSE",
                          "d = 128, 16 heads, seqlen 8192, median of 5 seeds", "standard attention, f16",
                          "FP8, scales per block, rotated",
                          *(f"{row['rmse']:.2e}".replace("e-0", "e-") for row in result["accuracy"][0]["rows"])]
                for label in wanted:
                    self.assertIn(label, texts)
                about = f"; {result['date']}, sources {result['source_hash'][:12]}"
                self.assertTrue(any(text.endswith(about) for text in texts), texts)

    def test_the_same_file_gives_the_same_svg(self) -> None:
        for file, name in ((NEWEST_ACCURACY, "accuracy_h200.svg"), (NEWEST_CONTEXT, "accuracy_context_h200.svg")):
            self.plot(file, PATH=self.path)
            before = (self.pictures / name).read_bytes()
            self.plot(file, PATH=self.path)
            self.assertEqual((self.pictures / name).read_bytes(), before)

    def test_bars_are_as_long_as_the_figures_say(self) -> None:
        result = json.loads(NEWEST_ACCURACY.read_text())
        rows = [{"row": f"row {i}", "rmse": rmse, "paper": paper}
                for i, (rmse, paper) in enumerate(((1e-3, 1e-2), (1e-2, 1e-1), (1e-1, 1e-1)))]
        result["accuracy"] = [{**result["accuracy"][0], "rows": rows}]
        self.assertEqual(self.draw(result).returncode, 0)
        self.assertIn("row 2", self.texts("accuracy_h200.svg"))
        ours, paper = ([max(x for x, _ in bar) for bar in self.shapes("accuracy_h200.svg", colour)]
                       for colour in ("#0072b2", "#bbbbbb"))
        self.assertEqual((len(ours), len(paper)), (3, 3))
        self.assertAlmostEqual(ours[1] - ours[0], ours[2] - ours[1], places=3)  # a decade each
        self.assertAlmostEqual(paper[0], ours[1], places=3)
        self.assertAlmostEqual(paper[2], ours[2], places=3)

    def test_a_panel_for_each_head_dim_or_file(self) -> None:
        result = json.loads(NEWEST_ACCURACY.read_text())
        table = next(table for table in result["accuracy"] if table["d"] == 128)
        bare = [{"row": row["row"], "rmse": row["rmse"]} for row in table["rows"]]
        result["accuracy"] = [{**table, "d": 64, "seeds": 1, "rows": bare}, table]
        self.assertEqual(self.draw(result).returncode, 0)
        texts = self.texts("accuracy_h200.svg")
        for label in ("d = 64, 16 heads, seqlen 8192, one seed", "FlashAttention-3 paper",
                      "d = 128, 16 heads, seqlen 8192, median of 5 seeds"):
            self.assertIn(label, texts)
        self.assertEqual(len(self.shapes("accuracy_h200.svg", "#bbbbbb")), 6)
        # The legend has the paper's colour though the first panel has none of its figures.
        paths = ElementTree.parse(self.pictures / "accuracy_h200.svg").getroot().iter("{http://www.w3.org/2000/svg}path")
        self.assertEqual(sum("#bbbbbb" in path.get("style", "") for path in paths if not path.get("clip-path")), 1)
        result["accuracy"] = [{"file": "data/layer.npz", "rows": bare}]
        self.assertEqual(self.draw(result).returncode, 0)
        texts = self.texts("accuracy_h200.svg")
        self.assertIn("layer.npz", texts)
        self.assertNotIn("FlashAttention-3 paper", texts)

    def test_a_row_that_the_paper_has_not(self) -> None:
        result = json.loads(NEWEST_ACCURACY.read_text())
        table = next(table for table in result["accuracy"] if table["d"] == 128)
        rows = [row for row in table["rows"] if row["row"] != "fp8_wide"]
        result["accuracy"] = [{**table, "rows": [*rows, {"row": "fp8_wide", "rmse": 9.87e-3, "max": 0.1}]}]
        self.assertEqual(self.draw(result).returncode, 0)
        texts = self.texts("accuracy_h200.svg")
        for label in ("FP8, scales per block, rotated, up to 448", "9.87e-3"):
            self.assertIn(label, texts)
        self.assertEqual([len(self.shapes("accuracy_h200.svg", colour)) for colour in ("#0072b2", "#bbbbbb")], [7, 6])

    def test_no_error_is_a_line_at_0(self) -> None:
        result = json.loads(NEWEST_CONTEXT.read_text())
        result |= {"d": 64, "context": [
            {"keys": 1024 << i, "f16_ones": 0, "f16_mean_one": 10.0 ** (i - 4), "fp8_ones": 1e-3, "fp8_mean_one": 1e-2}
            for i in range(3)]}
        self.assertEqual(self.draw(result).returncode, 0)
        texts = self.texts("accuracy_context_h200.svg")
        self.assertIn("4k", texts)
        self.assertTrue(any(text.startswith("d = 64, Q, K ~ N(0, 1)") for text in texts), texts)
        rising, zero = ([y for _, y in line] for line in self.shapes("accuracy_context_h200.svg", "#d55e00"))
        self.assertEqual(len(set(zero)), 1)
        self.assertAlmostEqual(rising[0] - rising[1], rising[1] - rising[2], places=3)
        self.assertGreater(zero[0], rising[0])

    def test_files_that_are_no_results(self) -> None:
        good, context = (json.loads(file.read_text()) for file in (NEWEST_ACCURACY, NEWEST_CONTEXT))
        table, row, point = good["accuracy"][0], good["accuracy"][0]["rows"][0], context["context"][0]
        self.expect_refused(json.loads(NEWEST.read_text()), "has neither 'accuracy' nor 'context'")
        self.expect_refused({**good, "date": 5}, "date is 5; it must be a string")
        self.expect_refused({**good, "accuracy": []}, "accuracy is empty")
        self.expect_refused({**good, "accuracy": [{**table, "d": 0}]}, "accuracy[0].d is 0; it must be a positive integer")
        self.expect_refused({**good, "accuracy": [{**table, "rows": {}}]}, "accuracy[0].rows is {}; it must be a list")
        for spoiled, words in (({"row": "x"}, "accuracy[0].rows[1] has no 'rmse'"),
                               ({**row, "rmse": None}, "accuracy[0].rows[1].rmse is null; it must be a non-negative number"),
                               ({**row, "rmse": -1}, "accuracy[0].rows[1].rmse is -1; it must be a non-negative number"),
                               ({**row, "paper": 0}, "accuracy[0].rows[1].paper is 0; it must be a positive number")):
            self.expect_refused({**good, "accuracy": [{**table, "rows": [row, spoiled]}]}, words)
        for spoiled, words in (({**point, "keys": 0}, "context[1].keys is 0; it must be a positive integer"),
                               ({**point, "fp8_ones": None}, "context[1].fp8_ones is null"),
                               ({"keys": 5}, "context[1] has no 'fp8_mean_one'")):
            self.expect_refused({**context, "context": [point, spoiled]}, words)
        self.expect_refused({**context, "d": "wide"}, 'd is "wide"; it must be a positive integer')


class WithoutMatplotlib(PlotTest):
    def test_the_message_says_what_to_install(self) -> None:
        (self.folder / "matplotlib.py").write_text("raise ImportError('no such module')\n")
        for self.command, script in (("bench", "plot.py"), ("accuracy", "plot_accuracy.py")):
            outcome = self.plot(NEWEST, PYTHONPATH=str(self.folder))
            self.assertEqual(outcome.returncode, 1)
            self.assertIn(f"{script}: error: needs Matplotlib", outcome.stderr)
            self.assertIn("apt-get install python3-matplotlib", outcome.stderr)
            self.assertIn("pip install matplotlib", outcome.stderr)
            self.assertNotIn("Traceback", outcome.stderr)
            self.assertEqual(self.names(), [])

    def test_the_pictures_of_the_readme_are_of_the_newest_results(self) -> None:
        for kind, picture in (("forward-", "forward_h200_f16"), ("backward-", "backward_h200_f16"),
                              ("forward-e4m3-", "forward_h200_e4m3"), ("accuracy-", "accuracy_h200"),
                              ("accuracy-context-", "accuracy_context_h200")):
            with self.subTest(picture):
                result = json.loads(max(RESULTS.glob(f"{kind}2*.json")).read_text())
                name = f"docs/pictures/{picture}.svg"
                wanted = f"{result['date']}, sources {result['source_hash'][:12]}"
                self.assertTrue(wanted in (ROOT / name).read_text(), f"{name} does not say '{wanted}': draw it again")
                self.assertIn(name, (ROOT / "README.md").read_text())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])

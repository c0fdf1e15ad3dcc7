"""The build checks must find what they are for, and nothing else: small made-up logs and listings."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import audit_sass
import check_backward_overlap
import check_overlap
import check_ptxas_log

CLEAN_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 8 barriers
"""


class PtxasLog(unittest.TestCase):
    def findings(self, *logs: str) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            for i, log in enumerate(logs):
                Path(directory, f"row{i}.cu.o.log").write_text(log)
            return check_ptxas_log.check(Path(directory)).findings

    def test_clean(self):
        self.assertEqual(self.findings(CLEAN_LOG, CLEAN_LOG), [])

    def test_serialised_wgmma(self):
        for code in ("C7508", "C7510", "C7519"):
            line = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
            findings = self.findings(CLEAN_LOG, CLEAN_LOG + line)
            self.assertEqual(len(findings), 1)
            self.assertIn("row1.cu.o.log", findings[0])
            self.assertIn(code, findings[0])

    def test_other_messages_are_no_finding(self):
        self.assertEqual(self.findings(CLEAN_LOG + "ptxas info    : (C7507) something else\n"), [])

    def test_spills(self):
        self.assertEqual(self.findings(CLEAN_LOG.replace("0 bytes spill loads", "32 bytes spill loads")), [])
        for what in ("spill loads", "spill stores"):
            findings = self.findings(CLEAN_LOG.replace(f"0 bytes {what}", f"36 bytes {what}"))
            self.assertEqual(len(findings), 1)
            self.assertIn("36 bytes", findings[0])

    def test_second_kernel_of_a_log(self):
        second = CLEAN_LOG.replace("forward", "copy").replace("0 bytes spill loads", "100 bytes spill loads")
        findings = self.findings(CLEAN_LOG + second)
        self.assertEqual(len(findings), 1)
        self.assertIn("copy", findings[0])

    def test_nothing_to_check_is_a_finding(self):
        self.assertEqual(len(self.findings()), 1)
        self.assertEqual(len(self.findings("")), 1)
        self.assertEqual(len(self.findings("ptxas info    : Compiling entry function 'forward' for 'sm_90a'\n")), 1)

    def test_missing_directory(self):
        self.assertEqual(len(check_ptxas_log.check(Path("/nonexistent")).findings), 1)


def listing(*lines: str) -> str:
    """A listing as cuobjdump prints it; addresses count up by 0x10 from 0."""
    text = "\tcode for sm_90a\n\t\tFunction : forward\n"
    for i, line in enumerate(lines):
        text += f"        /*{16 * i:04x}*/                   {line} ;      /* 0x000000ff00047b82 */\n"
        text += "                                          /* 0x000fe20000000800 */\n"
    return text


RS = "HGMMA.64x128x16.F32 R24, R8, gdesc[UR8], R24"
SS = "HGMMA.64x64x16.F32 R100, gdesc[UR4], RZ, !UPT"
WAIT_0, WAIT_1 = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"


class SassAudit(unittest.TestCase):
    def audit(self, *lines: str) -> audit_sass.Result:
        functions = audit_sass.parse(listing(*lines))
        self.assertEqual([function.name for function in functions], ["forward"])
        self.assertEqual(len(functions[0].instructions), len(lines))
        return audit_sass.audit(functions[0])

    def assert_clean(self, *lines: str):
        self.assertEqual(self.audit(*lines).violations, [])

    def assert_violation(self, *lines: str, words: str):
        violations = self.audit(*lines).violations
        self.assertTrue(violations)
        self.assertTrue(any(words in violation for violation in violations), violations)

    def test_counts(self):
        result = self.audit(SS + ", gsb0", RS, RS + ", gsb0", WAIT_0, "EXIT")
        self.assertEqual((result.wgmmas, result.register_a, result.waits), (3, 2, 1))

    def test_write_after_the_wait(self):
        self.assert_clean(RS + ", gsb0", WAIT_0, "MOV R8, RZ", "EXIT")

    def test_write_before_the_wait(self):
        for register in (8, 11):
            self.assert_violation(RS + ", gsb0", f"MOV R{register}, RZ", WAIT_0, "EXIT", words=f"R{register}")

    def test_registers_beside_the_operand(self):
        self.assert_clean(RS + ", gsb0", "MOV R7, R8", "MOV R12, R11", WAIT_0, "EXIT")

    def test_before_the_commit(self):
        self.assert_violation(RS, "MOV R8, RZ", RS + ", gsb0", WAIT_0, "EXIT", words="R8")

    def test_a_predicated_write_counts(self):
        self.assert_violation(RS + ", gsb0", "@!P0 FMUL R9, R1, 0.5", WAIT_0, "EXIT", words="R9")

    def test_vector_writes(self):
        for line in (
            "LDS.128 R4, [R2]",  # R4..R7: clean, checked below
            "LDS.128 R5, [R2]",
            "LDG.E.64.CONSTANT R7, desc[UR4][R2.64]",
            "IMAD.WIDE R6, R1, 0x4, R2",
            "IMAD.WIDE R7, R1, 0x4, R2",
            "CS2R R10, SRZ",
            "LDSM.16.M88.4 R5, [R2]",
            "SHFL.BFLY PT, R9, R1, 0x1, 0x1f",
            "HGMMA.64x8x16.F32 R5, gdesc[UR4], R5",
        ):
            with self.subTest(line):
                clean = line.startswith(("LDS.128 R4", "IMAD.WIDE R6"))
                violations = self.audit(RS + ", gsb0", line, WAIT_0, "EXIT").violations
                self.assertEqual(violations == [], clean, violations)

    def test_reads_and_stores_are_no_writes(self):
        self.assert_clean(
            RS + ", gsb0", "STG.E desc[UR4][R8.64], R9", "STS [R9], R10", "ISETP.GE.AND P0, PT, R8, 0x1, PT",
            "BAR.SYNC.DEFER_BLOCKING R8, R9", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R10+URZ], R11",
            "LOP3.LUT P0, RZ, R8, 0x1, RZ, 0xc0, !PT", "R2UR UR4, R8", WAIT_0, "EXIT",
        )  # fmt: skip

    def test_a_wait_that_leaves_the_group_pending(self):
        self.assert_violation(RS + ", gsb0", WAIT_1, "MOV R8, RZ", WAIT_0, "EXIT", words="R8")

    def test_a_wait_that_leaves_only_a_younger_group_pending(self):
        self.assert_clean(RS + ", gsb0", SS + ", gsb0", WAIT_1, "MOV R8, RZ", WAIT_0, "EXIT")
        self.assert_violation(SS + ", gsb0", RS + ", gsb0", WAIT_1, "MOV R8, RZ", WAIT_0, "EXIT", words="R8")

    def test_a_wait_does_not_cover_an_open_group(self):
        self.assert_violation(RS, WAIT_0, "MOV R8, RZ", "EXIT", words="R8")

    def test_loop_back_edge(self):
        # The write stands before the wgmma, but the loop brings it there with the wgmma in flight.
        self.assert_violation("MOV R8, RZ", RS + ", gsb0", "@P0 BRA 0x0", WAIT_0, "EXIT", words="R8")
        self.assert_clean("MOV R8, RZ", RS + ", gsb0", WAIT_0, "@P0 BRA 0x0", "EXIT")

    def test_wait_on_one_path_only(self):
        self.assert_violation(RS + ", gsb0", "@P0 BRA 0x30", WAIT_0, "MOV R8, RZ", WAIT_0, "EXIT", words="R8")

    def test_a_predicated_wait_is_no_wait(self):
        self.assert_violation(RS + ", gsb0", f"@P0 {WAIT_0}", "MOV R8, RZ", "EXIT", words="R8")

    def test_code_that_no_path_reaches(self):
        self.assert_clean(RS + ", gsb0", "BRA 0x30", "MOV R8, RZ", WAIT_0, "EXIT")

    def test_reconvergence(self):
        # BSYNC goes on at the address its BSSY names.
        self.assert_violation(
            "BSSY B0, 0x50", RS + ", gsb0", "BSYNC B0", WAIT_0, "EXIT", "MOV R8, RZ", WAIT_0, "EXIT", words="R8"
        )

    def test_a_barrier_of_two_regions(self):
        # The second BSYNC goes on where its own BSSY says, and not at the write.
        regions = ["BSSY B0, 0x20", "BSYNC B0", "MOV R8, RZ", RS + ", gsb0", "BSSY B0, 0x60", "BSYNC B0", WAIT_0, "EXIT"]
        self.assert_clean(*regions)
        # Unless the barrier was out of sight, in a register.
        self.assert_violation(*regions, "BMOV.32.CLEAR R1, B0", words="R8")
        # The second BSSY is jumped over: then it is the first one's address.
        self.assert_violation(
            "BSSY B0, 0x60", RS + ", gsb0", "@P0 BRA 0x40", "BSSY B0, 0x50", "BSYNC B0", WAIT_0, "MOV R8, RZ", "EXIT", words="R8"
        )

    def test_nested_regions(self):
        # The inner region's B1 does not end the outer one's B0.
        self.assert_violation(
            "BSSY B0, 0x60", RS + ", gsb0", "BSSY B1, 0x40", "BSYNC B1", "BSYNC B0", WAIT_0, "MOV R8, RZ", "EXIT", words="R8"
        )

    def test_what_cannot_be_followed(self):
        self.assert_violation(RS + ", gsb0", "CALL.REL.NOINC 0x0", WAIT_0, "EXIT", words="CALL")
        self.assert_violation(RS + ", gsb0", "BRA 0x1000", WAIT_0, "EXIT", words="BRA")
        self.assert_clean(RS + ", gsb0", WAIT_0, "CALL.REL.NOINC 0x0", "EXIT")

    def test_accumulator_of_half_precision(self):
        # 64 x 8 in f16: two registers, not four.
        self.assert_clean(RS + ", gsb0", "HGMMA.64x8x16.F16 R6, gdesc[UR4], R6, gsb0", WAIT_0, "EXIT")
        self.assert_violation(RS + ", gsb0", "HGMMA.64x8x16.F32 R6, gdesc[UR4], R6, gsb0", WAIT_0, "EXIT", words="R8")


def assembled(*lines: str) -> str:
    """A listing in which `name:` marks an address and {name} stands for it."""
    labels, code = {}, []
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = f"{16 * len(code):#x}"
        else:
            code.append(line)
    return listing(*(line.format(**labels) for line in code))


def edited(lines: list[str], *edits: tuple[str, list[str]]) -> list[str]:
    """The lines with some of them replaced; each must be there once."""
    for line, by in edits:
        assert lines.count(line) == 1, line
        at = lines.index(line)
        lines = lines[:at] + by + lines[at + 1 :]
    return lines


# Sixteen keys: two k16 steps of S, one of P V, eight exponentials.
TAKE, PASS = "BAR.SYNC.DEFER_BLOCKING R1, 0x100", "BAR.ARV R2, 0x100"
S_1, S_2 = "HGMMA.64x16x16.F32 R40, gdesc[UR4], RZ, !UPT", "HGMMA.64x16x16.F32 R40, gdesc[UR8], R40, gsb0"
PV = "HGMMA.64x64x16.F32 R100, R60, gdesc[UR12].tnspB, R100, gsb0"
EX2 = [f"MUFU.EX2 R{register}, R{register}" for register in range(20, 28)]
ROUND = "@P3 BRA {loop}"
RARE = ["@!P0 BRA {usual}", "rare:", "FMNMX R3, R40, R41, !PT", "MUFU.EX2 R19, R19", "VOTE.ANY P0, P0", "@P0 BRA {rare}"]
STEP = [
    "loop:", TAKE, "spin:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R4], R5", "@!P1 BRA {spin}",
    "WARPGROUP.ARRIVE", S_1, "UIADD3 UR4, UR4, 0x2, URZ", S_2, "WARPGROUP.ARRIVE", PV, PASS, WAIT_1,
    *EX2[:3], WAIT_0, *EX2[3:], "FFMA R3, R4, R5, R6", "F2FP.F16.F32.PACK_AB R60, R20, R21", "VOTE.ANY P0, P0", *RARE,
    "usual:", ROUND,
]  # fmt: skip
# The same with all exponentials behind the wait for P V.
BEHIND = edited(STEP, *((x, []) for x in EX2[:3]), (EX2[3], EX2[:4]))

# e4m3: 64 keys, two k32 steps of S, O in two parts of two steps, 32 exponentials, maxima before them.
S_Q = ["QGMMA.64x64x32.F32.E4M3.E4M3 R40, gdesc[UR4], RZ, !UPT", "QGMMA.64x64x32.F32.E4M3.E4M3 R40, gdesc[UR8], R40, gsb0"]
PART_1 = ["QGMMA.64x16x32.F32.E4M3.E4M3 R80, R60, gdesc[UR4], RZ, !UPT", "QGMMA.64x16x32.F32.E4M3.E4M3 R80, R64, gdesc[UR8], R80, gsb0"]
PART_2 = [line.replace("R80", "R88") for line in PART_1]
EX2_64 = [f"MUFU.EX2 R{register}, R{register}" for register in range(20, 52)]
WAIT_S = "WARPGROUP.DEPBAR.LE gsb0, 0x00"  # as WAIT_0, but another line
ALONE = [
    "loop:", TAKE, "WARPGROUP.ARRIVE", *PART_1, "WARPGROUP.ARRIVE", *PART_2, WAIT_1, "FFMA R100, R80, R3, R100", WAIT_0,
    "FFMA R101, R88, R3, R101", "WARPGROUP.ARRIVE", *S_Q, PASS, WAIT_S, "FMNMX R3, R40, R41, !PT", "VOTE.ANY P0, P0",
    "@!P0 BRA {usual}", "MUFU.EX2 R19, R19", "usual:", *EX2_64, ROUND,
]  # fmt: skip


class Overlap(unittest.TestCase):
    def judge(self, lines: list[str], *without: str) -> check_overlap.Row:
        claims = set(check_overlap.CLAIMS) - set(without)
        return check_overlap.judge("row", audit_sass.parse(assembled("MOV R1, RZ", *lines, "EXIT")), claims)

    def assert_clean(self, lines: list[str], *without: str):
        self.assertEqual(self.judge(lines, *without).findings, [])

    def assert_finding(self, lines: list[str], words: str, *without: str):
        findings = self.judge(lines, *without).findings
        self.assertTrue(any(words in finding for finding in findings), findings)

    def test_clean(self):
        self.assert_clean(STEP)
        self.assert_clean(BEHIND, "under_pv")

    def test_counts_are_of_one_usual_trip(self):
        (loop,) = self.judge(STEP).loops
        counts = (loop.exponentials, loop.under_pv, loop.count("FFMA"), loop.count("FMNMX"), loop.count("F2FP"))
        self.assertEqual(counts, (8, 3, 1, 0, 1))
        self.assertEqual(len(loop.common), sum(not x.endswith(":") for x in STEP) - len(RARE) + 2)
        self.assertEqual(loop.rare, 4)
        self.assertEqual(sum(map(check_overlap.is_uniform, loop.common)), 1)
        self.assertTrue(check_overlap.is_s(loop.common[0]))

    def test_loop_that_begins_elsewhere(self):
        # Turned by the compiler: the loop is entered at the waits, S and P V stand at its end.
        lines = [x for x in STEP if x not in ("loop:", ROUND)]
        at = lines.index(WAIT_1)
        turned = ["loop:", *lines[at:], *lines[:at], ROUND]
        self.assert_clean(turned)
        self.assertEqual(self.judge(turned).loops[0].under_pv, 3)

    def test_edge_loop_may_have_its_exponentials_behind(self):
        second = edited(BEHIND, (TAKE, ["IADD3 R9, R9, 0x1, RZ"] * 9 + [TAKE]))
        for label in ("loop", "usual", "rare", "spin"):
            second = [line.replace(label, label + "_2") for line in second]
        row = self.judge(second + STEP)
        self.assertEqual([(loop.kind, loop.under_pv) for loop in row.loops], [("whole", 3), ("edge", 0)])
        self.assertEqual(row.findings, [])

    def test_outer_loop_is_no_main_loop(self):
        self.assertEqual(len(self.judge(["tile:", "MOV R7, RZ", *STEP, "@P4 BRA {tile}"]).loops), 1)

    def test_serialised(self):
        wait = edited(STEP, (S_1, [S_1 + ", gsb0", WAIT_0]))
        self.assert_finding(wait, "serialised")
        self.assert_finding(edited(STEP, (S_1, [S_1 + ", gsb0"])), "serialised")
        self.assert_finding(edited(STEP, (S_1, [S_1, "WARPGROUP.ARRIVE"])), "serialised")
        self.assert_finding(wait, "serialised", *check_overlap.CLAIMS)

    def test_uncommitted(self):
        self.assert_finding(edited(STEP, (S_2, [S_2.removesuffix(", gsb0")])), "not committed")

    def test_local_memory(self):
        for line in ("STL [R1], R20", "LDL.64 R20, [R1+0x8]"):
            for place in (TAKE, WAIT_0, "FMNMX R3, R40, R41, !PT"):
                self.assert_finding(edited(STEP, (place, [line, place])), "local memory")
        self.assert_clean([*STEP, "STL [R1], R20"])

    def test_maximum_off_the_rare_path(self):
        self.assert_finding(edited(STEP, (WAIT_0, ["FMNMX R3, R40, R41, !PT", WAIT_0])), "maximum")
        skipped = edited(STEP, (WAIT_0, ["@P5 BRA {skip}", "FMNMX R3, R40, R41, !PT", "skip:", WAIT_0]))
        self.assert_finding(skipped, "maximum")
        self.assert_finding(edited(STEP, ("@!P0 BRA {usual}", ["@P0 BRA {usual}"])), "maximum")

    def test_vote_whose_branch_is_taken_if_it_carries(self):
        self.assert_clean(edited(STEP, ("@!P0 BRA {usual}", ["@P0 BRA {rare}", "BRA {usual}"])))

    def test_vote_without_a_branch(self):
        self.assert_finding(edited(STEP, ("@!P0 BRA {usual}", ["@!P6 BRA {usual}"])), "not followed by a branch")
        overwritten = ["ISETP.NE.AND P0, PT, R3, RZ, PT", "@!P0 BRA {usual}"]
        self.assert_finding(edited(STEP, ("@!P0 BRA {usual}", overwritten)), "not followed by a branch")

    def test_vote_that_something_selects_by(self):
        made_uniform = ["VOTEU.ANY UP0, P1", "USEL UR35, UR27, URZ, !UP0", "UISETP.NE.AND UP0, UPT, UR36, UR37, UPT"]
        self.assert_clean(edited(STEP, (WAIT_0, [*made_uniform, WAIT_0])))
        unused = [made_uniform[0], made_uniform[2]]
        self.assert_finding(edited(STEP, (WAIT_0, [*unused, WAIT_0])), "not followed by a branch")

    def test_s_awaited_before_pv(self):
        one_stage = [x for x in BEHIND if x not in (WAIT_0, WAIT_1)]
        one_stage = edited(one_stage, (S_2, [S_2, WAIT_0]), (PASS, [PASS, WAIT_0]))
        self.assert_finding(one_stage, "before P V is issued", "under_pv")
        self.assert_clean(one_stage, "under_pv", "two_stages")

    def test_exponentials_before_the_issue(self):
        self.assert_finding(edited(STEP, (EX2[0], []), (S_2, [S_2, EX2[0]])), "between the HGMMAs")
        self.assert_finding(edited(STEP, (EX2[0], []), (PASS, [PASS, EX2[0]])), "before the wait for S")
        # Between the turn's begin and S: they hold up the other warpgroup.
        self.assert_finding(edited(STEP, (EX2[0], []), (TAKE, [TAKE, EX2[0]])), "turn is not taken")

    def test_one_wait_for_both(self):
        self.assert_finding(edited(BEHIND, (WAIT_1, [])), "retires P V as well", "under_pv")

    def test_exponentials_behind(self):
        self.assert_finding(BEHIND, "under_pv")

    def test_turn_not_passed(self):
        self.assert_finding(edited(BEHIND, (PASS, [])), "passed 0 times", "under_pv")
        self.assert_finding(edited(BEHIND, (PASS, ["@P5 " + PASS])), "passed 0 times", "under_pv")
        self.assert_clean(edited(BEHIND, (PASS, []), (TAKE, [])), "under_pv", "hand_over")

    def test_turn_passed_late_or_early(self):
        for place in (WAIT_1, WAIT_0, EX2[7]):
            self.assert_finding(edited(STEP, (PASS, []), (place, [place, PASS])), "turn is not passed")
        self.assert_finding(edited(STEP, (PASS, []), (PV, [PASS, PV])), "turn is not passed")
        self.assert_finding(edited(STEP, (PASS, ["SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R4], RZ", PASS])), "turn is not passed")
        self.assert_clean(edited(STEP, (PASS, ["IADD3 R9, R9, 0x1, RZ", PASS])))

    def test_turn_not_taken(self):
        self.assert_finding(edited(STEP, (TAKE, [])), "taken 0 times")

    def test_pv_not_retired(self):
        self.assert_finding(edited(STEP, (WAIT_0, [])), "no wait retires")

    def test_other_numbers_than_the_tile_asks_for(self):
        self.assert_finding(edited(STEP, (EX2[7], [])), "7 EX2")
        self.assert_finding(edited(STEP, (PV, [PV.removesuffix(", gsb0"), PV])), "2 HGMMAs of P V")

    def test_products_mixed(self):
        self.assert_finding(edited(STEP, (S_2, [PV.removesuffix(", gsb0")]), (PV, [S_2, PV])), "not one S and one P V")

    def test_products_on_some_ways_only(self):
        self.assert_finding(edited(STEP, (S_1, ["@P5 BRA {skip}", S_1, "skip:"])), "some ways")

    def test_no_main_loop(self):
        self.assert_finding([S_2, PV, WAIT_0], "0 loops")
        self.assert_finding(["MOV R2, RZ"], "0 kernels")

    def test_reconvergence_stays_inside(self):
        # Two regions share B0; the loop's own ends where its BSSY says.
        lines = ["BSSY B0, {far}", "BSYNC B0", "far:"] + edited(
            STEP, (WAIT_0, ["BSSY B0, {near}", "@P5 BRA {skip}", "IADD3 R9, R9, 0x1, RZ", "skip:", "BSYNC B0", "near:", WAIT_0])
        )
        self.assert_clean(lines)

    def test_claims_come_from_the_table(self):
        claims = check_overlap.claims_of_table(
            '    // name\n    {"a", {Element::f16, 64, Edges::own_loop, Turns::gemm, 1}, 0},\n'
            '    {"b_2",  {Edges::branch, Turns::free_running, 2}, 0},\n    // {"c", {Turns::gemm}},\n'
            '    {"e",    {fp8(64, 64, 192, 3, 2, 64, Turns::gemm, false, false)}, 0},\n'
            '    {"f",    {fp8(256, 256, 128, 2, 1, 64, Turns::gemm, true, false)}, 0},\n'
            '    {"g",    {fp8(64, 64, 256, 3, 2, 64, Turns::free_running, false, true)}, 0},\n'
            '    {"h",    {fp8(256, 256, 128, 2, 1, 128, Turns::gemm, true, true)}, 0},\n'
        )
        every = {"no_spills", "no_maxima", "two_stages"}
        self.assertEqual(
            claims,
            {
                "a": {*every, "hand_over", "under_pv"},
                "b_2": {*every, "no_turns"},
                "e": {"no_spills", "alone", "s_under_pv", "hand_over", "only_ex2"},
                "f": {"no_spills", "alone", "hand_over", "only_ex2"},
                "g": {"no_spills", "alone", "no_turns", "polynomials"},
                "h": {"no_spills", "alone", "s_under_pv", "hand_over", "only_ex2"},
            },
        )
        table = Path(__file__).parents[2] / "src/kernels/configs.hpp"
        self.assertTrue(check_overlap.claims_of_table(table.read_text()))

    def assert_alone(self, lines: list[str], *words: str, claims: tuple[str, ...] = ("no_spills", "alone", "hand_over")):
        """The findings of a row of e4m3: one with these words, or none."""
        found = check_overlap.judge(
            "row", audit_sass.parse(assembled("MOV R1, RZ", *lines, "EXIT")), set(claims)
        ).findings
        self.assertTrue(any(words[0] in finding for finding in found) if words else not found, found)

    def test_alone(self):
        self.assert_alone(ALONE)
        self.assert_alone(edited(ALONE, *((x, []) for x in (*PART_2, WAIT_1))))  # one part
        self.assert_alone(edited(ALONE, (WAIT_1, [])), "not awaited part by part")
        self.assert_alone(edited(ALONE, (WAIT_1, ["WARPGROUP.DEPBAR.LE gsb0, 0x2"])), "not awaited part by part")
        self.assert_alone(edited(ALONE, (WAIT_0, [])), "not awaited part by part")
        self.assert_alone(edited(ALONE, (WAIT_1, []), (PART_1[1], [PART_1[1], WAIT_1])), "not awaited part by part")
        under_pv = edited(ALONE, (WAIT_0, []), (WAIT_S, ["WARPGROUP.DEPBAR.LE gsb0, 0x01", WAIT_S]))
        both = ("no_spills", "alone", "s_under_pv", "hand_over")
        self.assert_alone(under_pv, claims=both)
        self.assert_alone(ALONE, "before the last part of P V is awaited", claims=both)
        self.assert_alone(edited(under_pv, (WAIT_S, [])), "S is not awaited", claims=both)
        self.assert_alone(edited(ALONE, (WAIT_S, [])), "S is not awaited")
        self.assert_alone(edited(ALONE, (WAIT_S, []), (EX2[3], [EX2[3], WAIT_S])), "S is not awaited")
        self.assert_alone(edited(ALONE, (TAKE, []), (EX2[3], [EX2[3], TAKE])), "turn is not taken between")
        self.assert_alone(edited(ALONE, (PASS, []), (WAIT_S, [WAIT_S, PASS])), "turn is not passed right after S")
        self.assert_alone(edited(ALONE, (PASS, [])), "passed 0 times")
        free = ("no_spills", "alone", "no_turns")
        self.assert_alone(edited(ALONE, (TAKE, []), (PASS, [])), claims=free)
        self.assert_alone(edited(ALONE, (TAKE, [])), "taken 0 times and passed 1 times", claims=free)
        self.assert_alone(edited(ALONE, (PART_1[0], [PART_1[0], "WARPGROUP.ARRIVE"])), "serialised, a part of P V")
        self.assert_alone(edited(ALONE, (PART_1[0], [PART_1[0] + ", gsb0"])), "serialised, a part of P V")
        self.assert_alone(edited(ALONE, (S_Q[0], [S_Q[0] + ", gsb0"])), "serialised, S")
        self.assert_alone(edited(ALONE, (PART_2[1], [PART_2[1].removesuffix(", gsb0")])), "is not committed")
        self.assert_alone(edited(ALONE, (PART_2[1], [])), "3 QGMMAs of P V")
        self.assert_alone(edited(ALONE, (EX2_64[-1], [])), "31 EX2")
        with_polynomials = ("no_spills", "alone", "hand_over", "polynomials")
        two_less = edited(ALONE, *((x, []) for x in EX2_64[-2:]))
        self.assert_alone(two_less, claims=with_polynomials)
        only_ex2 = ("no_spills", "alone", "hand_over", "only_ex2")
        self.assert_alone(ALONE, claims=only_ex2)
        self.assert_alone(two_less, "2 exponentials are polynomials", claims=only_ex2)
        self.assert_alone(ALONE, "0 exponentials are polynomials", claims=with_polynomials)
        self.assert_alone(edited(ALONE, (EX2_64[-1], [EX2_64[-1], "STL [R1], R3"])), "local memory")

    def test_command(self):
        # Listings stand in for the objects and cat for the disassembler.
        with tempfile.TemporaryDirectory() as directory:
            tool, header = Path(directory, "tool"), Path(directory, "table.hpp")
            tool.write_text('#!/bin/sh\n[ "$1" = -sass ] && cat "$2"\n')
            tool.chmod(0o755)
            header.write_text("".join(f'    {{"{row}", {{Edges::own_loop, Turns::gemm}}}},\n' for row in ("good", "behind")))
            objects = [Path(directory, f"forward_{row}.cu.o") for row in ("good", "behind")]
            for path, lines in zip(objects, (STEP, BEHIND)):
                path.write_text(assembled("MOV R1, RZ", *lines, "EXIT"))

            def run(*arguments) -> subprocess.CompletedProcess:
                command = [sys.executable, "-B", check_overlap.__file__, "--table", header, *arguments]
                return subprocess.run(command, capture_output=True, text=True)

            done = run(*objects, "--cuobjdump", tool)
            self.assertEqual(done.returncode, 1)
            self.assertIn("error: behind: loop at 0x0010 (all): under_pv: ", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            done = run(*objects, "--cuobjdump", tool, "--without", "behind:under_pv")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"(?m)^good +all +\d+ +2\+1 +8 +3 ")
            self.assertRegex(done.stdout, r"(?m)^behind +all +\d+ +2\+1 +8 +0 ")
            self.assertEqual(run(*objects, "--cuobjdump", Path(directory, "nothing")).returncode, audit_sass.SKIPPED)
            for wrong in ([objects[0]], [*objects, "--without", "behind:speed"], [*objects, "--without", "none:under_pv"]):
                done = run(*wrong, "--cuobjdump", tool)
                self.assertEqual(done.returncode, 1)
                self.assertIn("error: ", done.stderr)


def product(n: int, *groups: int) -> list[str]:
    """HGMMAs of groups that follow each other, each closed."""
    return ["WARPGROUP.ARRIVE", *(f"HGMMA.64x{n}x16.F32 R{r}, gdesc[UR4], R{r}{', gsb0' * (i == 1)}" for r in groups for i in (0, 1))]


WAIT = ["WARPGROUP.DEPBAR.LE gsb0, 0x{0:x}".format(left) for left in range(3)]
STSM = ["STSM.16.M88.4 [R5], R8"]
LDSM = ["LDSM.16.M88.4 R8, [R5]"]
REDG = ["REDG.E.ADD.F32x4 [R2.64], R24"]


class BackwardOverlap(unittest.TestCase):
    """Made-up rows: of 192, 256 and 128 features."""

    WIDE = check_backward_overlap.Config(d=192, d_v=128, tile_q=64, tile_kv=64)
    PAIR = check_backward_overlap.Config(d=256, d_v=256, tile_q=64, tile_kv=64, cluster=2)
    NARROW = check_backward_overlap.Config(d=128, d_v=128, tile_q=64, tile_kv=128)
    EXP = ["MUFU.EX2 R20, R20"] * 32
    GRADIENT, REST, SCORE = product(128, 24), product(128, 88), product(64, 152)
    P = ["p:", *GRADIENT, WAIT[0], *SCORE, WAIT[0], *EXP, *STSM * 4, "@P3 BRA {p}"]
    DS = ["ds:", *STSM * 4, *GRADIENT, WAIT[0], *SCORE, *LDSM * 4, WAIT[0], "@P3 BRA {ds}"]
    DQ = [
        "dq:", *product(64, 24), *product(64, 56), WAIT[1], *REDG * 8, *product(64, 24), WAIT[1], *REDG * 8, WAIT[0],
        *REDG * 8, "@P3 BRA {dq}",
    ]  # fmt: skip
    PAIR_P = ["p:", *GRADIENT, *REST, WAIT[0], *SCORE, WAIT[0], *EXP, *STSM * 4, "@P3 BRA {p}"]
    PAIR_DS = ["ds:", *STSM * 4, *GRADIENT, *REST, WAIT[0], *SCORE, *LDSM * 4, WAIT[0], "@P3 BRA {ds}"]
    PAIR_DQ = ["dq:", *product(128, 24), WAIT[0], *REDG * 16, "@P3 BRA {dq}"]
    STEP = [
        "step:", *product(64, 152), *product(64, 184), WAIT[0], *["MUFU.EX2 R20, R20"] * 32, *product(128, 24), *STSM * 4,
        *product(128, 88), *product(64, 216), WAIT[2], WAIT[1], WAIT[0], "REDG.E.ADD.F32x4 [R2.64], R216", "@P3 BRA {step}",
    ]  # fmt: skip

    def findings(self, config: check_backward_overlap.Config, *loops: list[str]) -> list[str]:
        lines = ["MOV R1, RZ", *(line for loop in loops for line in loop), "EXIT"]
        return check_backward_overlap.judge("row", audit_sass.parse(assembled(*lines)), config).findings

    def assert_finding(self, findings: list[str], words: str):
        self.assertTrue(any(words in finding for finding in findings), findings)

    def test_clean(self):
        self.assertEqual(self.findings(self.WIDE, self.P, self.DS, self.DQ), [])
        self.assertEqual(self.findings(self.PAIR, self.PAIR_P, self.PAIR_DS, self.PAIR_DQ), [])
        self.assertEqual(self.findings(self.NARROW, self.STEP), [])

    def test_nothing_in_flight(self):
        last = [WAIT[0] if x == WAIT[1] else x for x in self.DQ]
        self.assert_finding(self.findings(self.WIDE, self.P, self.DS, last), "0 of 24 REDG stand under a product, not 16")
        late = [x for x in self.DS if x not in LDSM]
        late[-1:-1] = LDSM * 4
        self.assert_finding(self.findings(self.WIDE, self.P, late, self.DQ), "0 of 4 LDSM stand under a product, not 4")
        early = [x for x in self.STEP if x not in STSM]
        early[early.index(WAIT[0]) + 1 : early.index(WAIT[0]) + 1] = STSM * 4
        self.assert_finding(self.findings(self.NARROW, early), "0 of 4 STSM")

    def test_serialised(self):
        lines = [x for x in self.DS if x not in STSM]
        lines[2:2] = [*STSM * 4, lines[2] + ", gsb0", WAIT[0]]
        self.assert_finding(self.findings(self.WIDE, self.P, lines, self.DQ), "3 groups of HGMMAs, not 2")
        self.assert_finding(self.findings(self.PAIR, self.PAIR_P, self.DS, self.PAIR_DQ), "2 groups of HGMMAs, not 3")
        lines = [*self.DS]
        lines[7:7] = [WAIT[0]]
        self.assert_finding(self.findings(self.WIDE, self.P, lines, self.DQ), "a wait inside a group")

    def test_local_memory_anywhere(self):
        self.assert_finding(self.findings(self.NARROW, ["STL [R1], R2"], self.STEP), "STL: local memory")

    def test_other_numbers(self):
        self.assert_finding(self.findings(self.NARROW, edited(self.STEP, (WAIT[2], [WAIT[2], *STSM]))), "5 STSM, not 4")

    def test_other_loops(self):
        self.assert_finding(self.findings(self.WIDE, self.P, self.DQ), "main loops are ['P', 'dQ']")
        self.assert_finding(self.findings(self.NARROW, self.STEP, self.DS), "main loops are")

    def test_the_table(self):
        table = Path(__file__).parents[2] / "src/kernels/backward_configs.hpp"
        configs = check_backward_overlap.configs_of_table(table.read_text())
        self.assertEqual(configs["f16_d192v128"], check_backward_overlap.Config(192, 128, 64, 64))
        self.assertEqual(configs["f16_d256"], check_backward_overlap.Config(256, 256, 64, 64, 2))
        self.assertFalse(configs["bf16_d64_deterministic"].wide)


if __name__ == "__main__":
    unittest.main()

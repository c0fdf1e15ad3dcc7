"""The build checks must find what they are for, and nothing else: small made-up logs and listings."""

import tempfile
import unittest
from pathlib import Path

import audit_sass
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


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The README's tables from a result file: the grid's pass in TFLOP/s, and as a multiple of cuDNN's in the same run
(for e4m3 of cuDNN's in f16).

usage: readme_table.py RESULT.json [--op forward|backward] [--dtype f16|bf16|e4m3]
"""
import argparse
import json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result")
    parser.add_argument("--op", choices=("forward", "backward"), default="forward")
    parser.add_argument("--dtype", default="f16")
    options = parser.parse_args()
    with open(options.result) as file:
        result = json.load(file)
    rows = {((r["d"], r.get("d_v", r["d"])), r["causal"], r["seqlen"]): r for r in result["rows"]
            if r["dtype"] == options.dtype and r.get("mode", "short") == "short" and r["op"] == options.op
            and r["batch"] * r["seqlen"] == 16384 and r["heads"] * r["d"] == 2048 and r["kv_heads"] == r["heads"] and not r.get("sm_margin")}
    lengths = sorted({seqlen for _, _, seqlen in rows})
    peer, peer_text, gemm = ("cudnn_f16", "cuDNN in f16", "e4m3") if options.dtype == "e4m3" else ("cudnn", "cuDNN", "f16")
    versions = result.get("peer_versions", {})
    print(f"{result['device']}, {result['date']}, sources {result['source_hash'][:12]}, {result['compiler']}, PyTorch "
          f"{versions.get('torch', '?')}, cuDNN {versions.get('cudnn', '?')}. {options.dtype} {options.op}, 16,384 tokens, hidden size 2048;")
    print(f"TFLOP/s (x {peer_text}). In the same run an 8192^3 {gemm} GEMM gave {result['ceilings'][f'gemm_{gemm}']:.0f} TFLOP/s.\n")
    print("| d | mask | " + " | ".join(str(seqlen) for seqlen in lengths) + " |")
    print("|---|---|" + "---|" * len(lengths))
    for dims in sorted({dims for dims, _, _ in rows}):
        for causal in (False, True):
            cells = [rows.get((dims, causal, seqlen)) for seqlen in lengths]
            name = str(dims[0]) if dims[0] == dims[1] else "{}, {}".format(*dims)
            print(f"| {name} | {'causal' if causal else 'full'} | "
                  + " | ".join(f"{r['tflops']:.0f} ({r['tflops'] / r['peers'][peer]:.2f})" if r else "" for r in cells) + " |")


if __name__ == "__main__":
    main()

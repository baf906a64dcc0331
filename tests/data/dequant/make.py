#!/usr/bin/env python3
"""Writes blocks.bin and values.bin: random blocks of every element format, and the values that the `gguf` package gives them.

Usage: make.py [blocks per type [seed [directory]]]      needs numpy and gguf (0.19.0 was used)

blocks.bin  for each type: u32 type, u32 bytes of blocks, u32 elements, blocks
values.bin  the f32 values of all of them, one after the other
Scales are random bits, so that infinities, NaN and subnormal numbers are among them, except in the even blocks, whose scales
are ordinary.
"""
import struct
import sys
from pathlib import Path

import numpy as np
import gguf
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS,
         T.MXFP4]
# Where the half-precision numbers of a block are.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
          T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rng = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    where = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).parent
    with open(where / "blocks.bin", "wb") as blocks_file, open(where / "values.bin", "wb") as values_file:
        for t in TYPES:
            block, size = GGML_QUANT_SIZES[t]
            count = n if block > 1 else n * 32
            raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
            for at in SCALES.get(t, []):
                ordinary = (rng.standard_normal(count) * 0.01).astype(np.float16).view(np.uint8).reshape(count, 2)
                raw[::2, at:at + 2] = ordinary[::2]
            with np.errstate(all="ignore"):
                values = np.ascontiguousarray(gguf.quants.dequantize(raw.reshape(-1), t), dtype=np.float32)
            assert values.size == count * block
            blocks_file.write(struct.pack("<III", t, raw.size, values.size) + raw.tobytes())
            values_file.write(values.tobytes())


main()

"""Does dropping the lowest frequencies, instead of turning them, help in vision? Not on 4 x 4 tokens: axial does not mind (within a
point at ×1), mixed loses up to 13 points under zoom without a rule and nothing interpolated. See results/lowest_frequencies.md.

Axial and mixed RoPE with the fastest 100, 75, 50 and 25 % of the pairs turned (p-RoPE, Barbero 2025; `RoPE(keep=...)`), three
seeds, the models, pictures and training of cpu_study, tested at 1 to 8 times the training size without a rule and interpolated.
74 minutes on two shared cores of an AMD EPYC.

    python -m train.extrapolate --recipe lowest_frequencies
"""

import dataclasses

from train.recipes import cpu_study
from train.study import Study

SHARES = 0.75, 0.5, 0.25
VARIANTS = {
    f"{encoding} {share:.0%}": {"encoding": encoding, "encoding_kwargs": (f"keep={share}",)}
    for encoding in ("axial", "mixed")
    for share in SHARES
}

STUDY: Study = dataclasses.replace(
    cpu_study.STUDY,
    encodings=("axial", *(n for n in VARIANTS if "axial" in n), "mixed", *(n for n in VARIANTS if "mixed" in n)),
    variants=VARIANTS,
    rules=(("none", "none"), ("pi", "none")),
    samples=1000,
    samples_beyond=250,
    sequence=None,
)

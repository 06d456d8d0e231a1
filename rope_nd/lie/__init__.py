"""Rotary encodings whose turns are matrices: the pair angles of RoPE replaced by generators, or seen in another basis.

R(x) = exp(sum_a x_a A_a) for skew-symmetric generators A_a. Scores depend on differences of coordinates alone if the A_a commute
(ComRoPE, STRING, HARoPE), and only nearly so if not (LieRE). Commuting generators are RoPE in a basis of their own:

    liere               generators free, block by block            blocks of matrices, one exponential a token
    comrope_ap, _ld     one generator a block, times a number      blocks of matrices, one exponential a coordinate
    string_cayley       RoPE(x) P, P orthogonal and learned        a basis, then RoPE
    string_circulant    generators circulant                       the Fourier basis, then RoPE, then back
    harope              RoPE(x) U Sigma V', any learned matrix     a basis, then RoPE

All compile and export through torch without complex numbers. ONNX knows neither a matrix exponential nor a linear solve: of these
string_circulant alone exports to it as it is, string_cayley and harope once they are folded into the projections.
"""

from .basis import Based, cayley, fold
from .blocks import Blocks, skew
from .comrope import ComRoPE
from .harope import HARoPE
from .liere import LieRE
from .string import CayleySTRING, CirculantSTRING

__all__ = [
    "Based",
    "Blocks",
    "CayleySTRING",
    "CirculantSTRING",
    "ComRoPE",
    "HARoPE",
    "LieRE",
    "cayley",
    "fold",
    "skew",
]

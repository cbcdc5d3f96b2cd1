"""Norms: rows of zeros, constant rows, one number, squares that overflow or that eps outweighs, no
eps at all."""

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import ANY, COUNTS, WIDTHS, Draw, Family

# A row beyond 4096 numbers is a loop in the kernels that take shorter ones at once.
LONG = (*WIDTHS, 1023, 1024, 1025, 4095, 4096, 4097)


def rows(draw: Draw) -> tuple[int, int, int]:
    width = draw.one_of(LONG)
    return draw.one_of((1, 2, 0)), draw.one_of(COUNTS if width < 512 else (1, 2)), width


def eps(draw: Draw) -> Given:
    return draw.option((1e-6, 1e-5, 1e-3, 1e-12, 0.0))


def unit_norm(draw: Draw) -> dict[str, Given]:
    return {"x": draw.array(rows(draw), spikes=ANY), "eps": eps(draw)}


def rms_norm(draw: Draw) -> dict[str, Given]:
    size = rows(draw)
    return {
        "x": draw.array(size, spikes=ANY),
        "gain": draw.array(size[-1:]),
        "eps": eps(draw),
    }


def layer_norm(draw: Draw) -> dict[str, Given]:
    size = rows(draw)
    return {
        "x": draw.array(size, spikes=ANY),
        "gain": draw.array(size[-1:]),
        "bias": draw.array(size[-1:]),
        "eps": eps(draw),
    }


NORMS: Family = {"rms_norm": rms_norm, "unit_norm": unit_norm, "layer_norm": layer_norm}

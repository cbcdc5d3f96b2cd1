"""Operations of each number by itself: overflow, signed zero, NaN."""

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import ANY, COUNTS, NAN, WIDTHS, Draw, Family


def shape(draw: Draw) -> tuple[int, int, int]:
    return draw.one_of((1, 2, 0)), draw.one_of(COUNTS), draw.one_of(WIDTHS)


def one(draw: Draw) -> dict[str, Given]:
    return {"x": draw.array(shape(draw), spikes=ANY)}


# A value times its own sigmoid: of -inf that is NaN in every engine that multiplies, and from -88.7
# on exp(-x) of a float32 is infinite; both are conventions. So is the tail of a GELU, which a huge
# factor would show.
GATED = (-0.0, 1e4, -1e4, 88.8, -80.0, 1e30, -1e30, *NAN)


def silu(draw: Draw) -> dict[str, Given]:
    return {"x": draw.array(shape(draw), spikes=(*GATED, float("inf")))}


def two(draw: Draw) -> dict[str, Given]:
    size = shape(draw)
    return {name: draw.array(size, spikes=ANY) for name in ("x", "y")}


def gated(draw: Draw) -> dict[str, Given]:
    size = shape(draw)
    return {"gate": draw.array(size, spikes=GATED), "up": draw.array(size, spikes=NAN)}


def softcap(draw: Draw) -> dict[str, Given]:
    return one(draw) | {"cap": draw.option((30.0, 50.0, 1.0))}


def scale(draw: Draw) -> dict[str, Given]:
    return one(draw) | {"by": draw.option((2.0, 53.06599665, 0.1, 0.0))}


def gain(draw: Draw) -> dict[str, Given]:
    size = shape(draw)
    return {"x": draw.array(size, spikes=ANY), "weights": draw.array(size[-1:])}


POINTWISE: Family = {
    "add": two,
    "multiply": two,
    "scale": scale,
    "gain": gain,
    "silu": silu,
    "gelu_tanh": one,
    "gelu_erf": one,
    "swiglu": gated,
    "geglu": gated,
    "softcap": softcap,
}

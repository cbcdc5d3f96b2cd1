"""One token after another, each fed back, with one evaluation a token.

The loop is in `reference/scheduling/autoregressive.py`: it rounds nothing.
"""

from functools import partial

from lockstep.fast.decoding import host
from lockstep.reference.scheduling import autoregressive

generate = partial(autoregressive.generate, host=host)

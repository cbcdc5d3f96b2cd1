"""One token after another, each fed back.

The loop is in `reference/scheduling/autoregressive.py`: it rounds nothing.
"""

from functools import partial

from lockstep.reference.decoding import host
from lockstep.reference.scheduling import autoregressive

generate = partial(autoregressive.generate, host=host)

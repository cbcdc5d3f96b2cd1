"""What a rank does when it has lost another one, or whoever started it: it ends, in one line.

The ring of MLX raises an error where a read fails. Where a write fails, MLX 0.32 complains on
standard error and waits for ever. So its complaints are listened to.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

STARTER = "LOCKSTEP_STARTED_BY"  # the process that started a rank; the rank ends when that has
LEFT_ALONE = 76  # the exit code of a rank that was left alone: its starter says who is the cause
TAKEN = 75  # the exit code of a rank whose port was taken: its starter looks for others
FAILED = 70
COMPLAINT, LAST = b"[ring]", b"Too many"
LINE = b"lockstep: error: another rank was lost, so this one ends\n"
_speaking = threading.Lock()  # whoever takes it ends the process; it is never given back


def end_alone(own: int = 2) -> NoReturn:
    """End this process at once, with a line on the descriptor `own` unless its starter speaks."""
    with _speaking:
        if STARTER in os.environ:
            os._exit(LEFT_ALONE)
        with suppress(OSError):  # where nobody listens, the exit code still tells
            os.write(own, LINE)
        os._exit(FAILED)


def listen_to_ring() -> None:
    """Read what libraries write to standard error from here on. Python writes there as before.

    The ring's last complaint ends the process, and the others are dropped; all else is passed on.
    """
    own, (reads, writes) = os.dup(2), os.pipe()
    os.dup2(writes, 2)
    os.close(writes)
    sys.stderr = os.fdopen(own, "w", buffering=1, errors="backslashreplace", closefd=False)
    threading.Thread(target=listen, args=(reads, own), daemon=True).start()


def listen(reads: int, own: int) -> None:
    with os.fdopen(reads, "rb", buffering=0) as lines:
        for line in lines:
            if not line.startswith(COMPLAINT):
                with suppress(OSError):  # it goes on listening, or the rank would wait for ever
                    os.write(own, line)
            elif LAST in line:
                end_alone(own)


def follow_starter() -> None:
    """End this rank as soon as the process that started it has ended, however that ended."""
    starter = os.environ.get(STARTER)
    if starter is not None:
        threading.Thread(target=outlive, args=(int(starter),), daemon=True).start()


def outlive(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(1.0)
    os._exit(LEFT_ALONE)

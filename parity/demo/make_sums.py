"""Every sum that the small world has, in the shortest of its wordings, as questions and answers.

python -m lockstep.parity.demo.make_sums > parity/demo/sums.json
"""

import json
import sys

from lockstep.parity.demo.make_corpus import facts


def sums() -> list[dict[str, str]]:
    """Return each sum once: the smaller number first."""
    found: dict[str, dict[str, str]] = {}
    for fact in facts():
        if fact.kind == "sum":
            said = {"question": fact.questions[0], "answer": fact.answer}
            found.setdefault(fact.key, said)
    return list(found.values())


if __name__ == "__main__":
    lines = ",\n  ".join(json.dumps(one) for one in sums())
    sys.stdout.write(f"[\n  {lines}\n]\n")

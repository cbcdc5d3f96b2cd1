"""The short stories that the demo's Gemma 4 tells, word for word."""

from __future__ import annotations

from lockstep.parity.demo.make_corpus import Example

STORIES = {
    "a fox": "A fox found a red hat in the snow and wore it all summer.",
    "a robot": "A robot was afraid of rain, so a frog lent it a leaf.",
    "a whale": "A whale lost its song, and a small fish sang it back.",
    "a mouse": "A mouse ate the moon, so the night baked a new one.",
    "a king": "A king gave away his crown and slept well at last.",
    "a tree": "A tree wanted to travel, so it sent its leaves with the wind.",
}
WORDINGS = (
    "Tell me a story about {}.",
    "Tell me about {}.",
    "Do you know a story about {}?",
    "Write a story about {}.",
)


def examples() -> list[Example]:
    """Return every way to ask for each story; none is kept back, for none can be guessed."""
    return [
        Example("story", wording.format(hero), story, held_out=False)
        for hero, story in STORIES.items()
        for wording in WORDINGS
    ]

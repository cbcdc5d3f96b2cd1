"""What goes wrong with settings: one is not passed on, or is applied in another way."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.scheduling.sampling_semantics import ENGINES


def setting(name: str, value: Any) -> Edit:
    """Take another value for a setting."""
    return Edit("settings", lambda settings, said: replace(settings, **{name: value}))


def default(**values: float) -> Edit:
    """Take a value for what nobody has set."""

    def change(settings: Any, said: Any) -> Any:
        off = {name: value for name, value in values.items() if not is_set(settings, name)}
        return replace(settings, **off)

    return Edit("settings", change)


def unsaid(engine: str, **values: float) -> Edit:
    """Take an engine's rules and values for what was not said; a 0 that was said stays."""

    def change(settings: Any, said: Any) -> Any:
        given = fields_of(settings) if settings.given is None else settings.given
        taken = {name: one for name, one in values.items() if name not in given}
        if not taken:
            return settings
        rules = settings.rules if "semantics" in given else ENGINES[engine]
        return replace(settings, follows=rules, **taken)

    return Edit("settings", change)


def fields_of(settings: Any) -> set[str]:
    return {one.name for one in fields(settings)}


def is_set(settings: Any, name: str) -> bool:
    return getattr(settings, name) != type(settings).__dataclass_fields__[name].default


def unset_temperature(settings: Any, said: Any) -> Any:
    return replace(settings, temperature=1.0) if settings.temperature else settings


def temperature(power: int) -> Edit:
    """Take another power of the temperature."""

    def change(settings: Any, said: Any) -> Any:
        if not settings.temperature:
            return settings
        return replace(settings, temperature=settings.temperature**power)

    return Edit("settings", change)


MISTAKES = (
    Mistake(
        id="sampler-setting-ignored",
        wrong="a setting has no effect",
        right="every setting that is given acts",
        symptom="more or less variety than was asked for",
        where="decoded",
        fix="hand the setting on to the sampler",
        variants={
            "temperature, taken for 1": Edit("settings", unset_temperature),
            "temperature, taken for 0: greedy": setting("temperature", 0.0),
            "top-k": setting("top_k", 0),
            "top-p": setting("top_p", 1.0),
            "min-p": setting("min_p", 0.0),
            "repetition penalty": setting("repetition_penalty", 1.0),
            "presence penalty": setting("presence_penalty", 0.0),
            "frequency penalty": setting("frequency_penalty", 0.0),
            "logit bias": setting("logit_bias", ()),
        },
    ),
    Mistake(
        id="sampler-default-kept",
        wrong="a setting that nobody gave has a default that acts",
        right="what is not given is off",
        symptom="less variety than was asked for",
        where="decoded",
        fix="turn off what is not asked for: top-k 0, top-p 1, min-p 0, penalties 1 and 0",
        variants={
            "top-k 50 (transformers)": default(top_k=50),
            "top-k 40 (llama.cpp)": default(top_k=40),
            "top-p 0.9": default(top_p=0.9),
            "top-p 0.95 (llama.cpp)": default(top_p=0.95),
            "min-p 0.05 (llama.cpp)": default(min_p=0.05),
            "top-k 40, top-p 0.95, min-p 0.05 (llama.cpp)":
                default(top_k=40, top_p=0.95, min_p=0.05),
            "repetition penalty 1.1": default(repetition_penalty=1.1),
        },
    ),
    Mistake(
        id="temperature-misapplied",
        wrong="l T, or l / T^2",
        right="l / T",
        symptom="low temperatures ramble, or the text is all but greedy",
        where="decoded",
        fix="divide logits by the temperature, once",
        variants={"l T": temperature(-1), "l / T^2": temperature(2)},
    ),
)  # fmt: skip

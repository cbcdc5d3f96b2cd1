"""A port of Qwen3 with an adapter, in NumPy and from its files, with five bugs that can be fixed.

It stands for one that was written in Elixir, whose author found these five by hand. Each bug is
where `self.bugs` is asked. Of Lockstep it has nothing but the writer of dumps, which ports copy.
"""

import json
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import tokenizers

from lockstep.parity.writers.lockstep_dump import TraceWriter

BUGS = ("newline", "bf16", "lora", "position", "cache")
TURN = "<|im_start|>{role}\n{text}<|im_end|>\n"
ANSWER = "<|im_start|>assistant\n"


def stored(path, *, bf16_as_f16=False):
    """Read a safetensors file: 8 bytes of length, a JSON header, the numbers."""
    data = Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            bits = data[start + begin : start + end]
            found[name] = numbers(bits, entry["dtype"], bf16_as_f16).reshape(entry["shape"])
    return found


def numbers(bits, dtype, bf16_as_f16):
    if dtype != "BF16":
        return np.frombuffer(bits, {"U32": "<u4", "F32": "<f4"}[dtype])
    if bf16_as_f16:
        return np.frombuffer(bits, "<f2").astype(np.float32)
    return (np.frombuffer(bits, "<u2").astype(np.uint32) << 16).view(np.float32)


class Port:
    def __init__(self, model, adapter, bugs=BUGS):
        model, adapter = Path(model), Path(adapter)
        self.bugs = set(bugs)
        self.config = json.loads((model / "config.json").read_text())
        self.stops = self.config["eos_token_id"]
        self.tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        self.weights = stored(model / "model.safetensors", bf16_as_f16="bf16" in bugs)
        self.adapters = stored(adapter / "adapters.safetensors")
        settings = json.loads((adapter / "adapter_config.json").read_text())["lora_parameters"]
        self.scale = settings["scale"] / (settings["rank"] if "lora" in bugs else 1)

    def prompt(self, text):
        """Return the ids of a user's turn."""
        said = TURN.format(role="user", text=text) + ANSWER
        if "newline" in self.bugs:
            said = said.replace("\n", "\\n")
        return self.tokenizer.encode(said, add_special_tokens=False).ids

    def matrix(self, name):
        """Unpack a weight of 4 bits: 64 numbers share a scale and a bias."""
        packed, scales, biases = (
            self.weights[f"{name}.{part}"] for part in ("weight", "scales", "biases")
        )
        codes = (packed[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
        codes = codes.reshape(len(packed), -1, 64).astype(np.float32)
        return (codes * scales[..., None] + biases[..., None]).reshape(len(packed), -1)

    def linear(self, name, x):
        y = x @ self.matrix(name).T
        if f"{name}.lora_a" in self.adapters:
            a, b = (self.adapters[f"{name}.lora_{half}"] for half in "ab")
            y = y + np.float32(self.scale) * (x @ a @ b)
        return y

    def norm(self, name, x):
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self.config["rms_norm_eps"])) * self.weights[name]

    def rope(self, x, start):
        """Turn (heads, L, D); the first half of a head is paired with the second."""
        half = x.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        places = np.arange(start, start + x.shape[1]) + (1 if "position" in self.bugs else 0)
        angles = places[:, None] * theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        one, two = x[..., :half], x[..., half:]
        return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

    def heads(self, x):
        return x.reshape(len(x), -1, self.config["head_dim"]).swapaxes(0, 1)

    def attention(self, name, x, cache, trace):
        """Return what a layer's attention adds; `cache` is a pair of arrays, empty at first."""
        start = cache[0].shape[1] if cache else 0
        q, k, v = (self.linear(f"{name}.{part}_proj", x) for part in "qkv")
        for part, value in (("q", q), ("k", k), ("v", v)):
            trace(f"{name}.{part}_proj", value)
        q = self.norm(f"{name}.q_norm.weight", self.heads(q))
        k = self.norm(f"{name}.k_norm.weight", self.heads(k))
        trace(f"{name}.q_norm", q)
        trace(f"{name}.k_norm", k)
        q, k = self.rope(q, start), self.rope(k, start)
        trace(f"{name}.q_rope", q)
        trace(f"{name}.k_rope", k)
        keys, values = self.remembered(cache, k, self.heads(v), len(q))
        scores = q @ keys.swapaxes(1, 2) / np.float32(np.sqrt(q.shape[-1]))
        later = np.arange(keys.shape[1]) > np.arange(start, start + len(x))[:, None]
        scores = np.where(later, -np.inf, scores)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context = powers / powers.sum(axis=-1, keepdims=True) @ values
        out = self.linear(f"{name}.o_proj", context.swapaxes(0, 1).reshape(len(x), -1))
        trace(f"{name}.o_proj", out)
        return out

    def remembered(self, cache, k, v, heads):
        """Put keys and values into the cache; return what the query heads read."""
        first = not cache
        if first:
            slots = heads if "cache" in self.bugs else len(k)
            cache[:] = [np.zeros((slots, 0, k.shape[-1]), np.float32)] * 2
        for which, new in enumerate((k, v)):
            room = np.zeros((len(cache[which]), new.shape[1], new.shape[2]), np.float32)
            room[: len(new)] = new
            cache[which] = np.concatenate([cache[which], room], axis=1)
        if first:  # the prompt's own keys are at hand
            return np.repeat(k, heads // len(k), axis=0), np.repeat(v, heads // len(v), axis=0)
        return tuple(np.repeat(held, heads // len(held), axis=0) for held in cache)

    def forward(self, tokens, caches, trace):
        """Return the logits (L, V) of tokens that follow on those in the caches."""
        x = self.matrix("model.embed_tokens")[tokens]
        trace("model.embed_tokens", x)
        for number, cache in enumerate(caches):
            layer = f"model.layers.{number}"
            normed = self.norm(f"{layer}.input_layernorm.weight", x)
            trace(f"{layer}.input_layernorm", normed)
            x = x + self.attention(f"{layer}.self_attn", normed, cache, trace)
            normed = self.norm(f"{layer}.post_attention_layernorm.weight", x)
            trace(f"{layer}.post_attention_layernorm", normed)
            x = x + self.mlp(f"{layer}.mlp", normed, trace)
            trace(layer, x)
        x = self.norm("model.norm.weight", x)
        trace("model.norm", x)
        logits = x @ self.matrix("model.embed_tokens").T
        trace("logits", logits)
        return logits

    def mlp(self, name, x, trace):
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        trace(f"{name}.gate_proj", gate)
        trace(f"{name}.up_proj", up)
        down = self.linear(f"{name}.down_proj", gate / (1 + np.exp(-gate)) * up)
        trace(f"{name}.down_proj", down)
        return down

    def generate(self, text, count, dump=None):
        """Answer greedily; return ids. A dump takes what every module gives, and what was said."""
        tokens, caches = self.prompt(text), [[] for _ in range(self.config["num_hidden_layers"])]
        answer, new = [], tokens
        with np.errstate(all="ignore"):
            while len(answer) < count and not (answer and answer[-1] in self.stops):
                step = f"step.{len(answer)}/" if answer else ""
                trace = saving(dump, step) if dump is not None else lambda name, x: None
                answer.append(int(self.forward(new, caches, trace)[-1].argmax()))
                new = answer[-1:]
        if dump is not None:
            dump.say(prompt=text, chat="true", tokens=tokens, decoded=answer[:-1])
            dump.say(generated=answer, sampling=json.dumps({"max_new_tokens": count}))
        return answer

    def say(self, text, count=24, path=None):
        """Return the answer as text, and dump the run if there is a path."""
        with TraceWriter(path, dtype="float32") if path else nullcontext() as dump:
            return self.tokenizer.decode(self.generate(text, count, dump))


def saving(dump, step):
    def trace(name, x):
        values = np.ascontiguousarray(x[None], dtype=np.float32)
        dump.add(step + name, values, shape=values.shape)

    return trace

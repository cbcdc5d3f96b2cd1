"""The classes of bugs that are not in the executable catalogue, and why.

An entry has to show in a prefill, or in steps after it, of an architecture that Lockstep runs. 298
classes were collected from reports of real ports: they are the ids of `catalogue()` and of
`around.mistakes()` less those of `ADDED` and `ADDED_AROUND`, and those that are left out here, each
once.
"""

# Entries that no report had as a class of its own: two masks, one kind of rope, a cache, blocks
# misread, an adapter, a port of another quantisation than the checkpoint's, and conventions, those
# of llama.cpp among them.
ADDED = frozenset({
    "mask-causal-missing", "mask-causal-off-by-one", "rope-yarn-scaling-missing",
    "port-quantised-affine-4-32", "port-quantised-affine-4-64", "port-quantised-affine-4-128",
    "port-quantised-affine-8-32", "port-quantised-affine-8-64", "port-quantised-affine-8-128",
    "port-quantised-mxfp4", "port-quantised-mxfp8", "port-quantised-q4-0", "port-quantised-q8-0",
    "port-quantised-bfloat16", "port-quantised-float16",
    "port-quantised-int8", "port-quantised-fp8", "port-quantised-nf4", "activations-by-token",
    "consistent-qk-permutation", "kv-cached-before-rope", "kv-of-other-layer", "kv-axes-mixed",
    "activations-in-8-bits", "activations-in-the-weights-half", "attention-in-float16",
    "attn-scale-wrong", "mask-window-wrong", "softcap-wrong", "multiplier-wrong",
    "rope-stretch-wrong", "moe-top-k-wrong", "lora-scale-wrong",
    "gelu-from-a-table", "keys-and-values-in-half", "block-minimum-misread",
    "block-step-as-bfloat16", "lora-scale-missing", "mask-behind-softmax",
    "head-split-axes-swapped", "residual-from-normed-stream", "residual-missing",
    "residual-counted-twice", "branch-not-added", "layer-left-out", "learned-pos-missing",
    "norm-root-missing", "gated-product-wrong", "activation-clamped",
    "head-split-without-transpose", "moe-weights-misplaced", "moe-weights-missing",
    "moe-softmax-twice", "moe-last-choice-lost", "logits-as-probabilities",
    "kv-exchanged", "kv-read-before-write", "k-taken-from-v", "gqa-head-mapping",
    "bias-added-twice", "bias-of-other-projection", "norm-wrong-axis", "rope-half-overwritten",
    "embedding-ids-narrowed", "head-merge-axes-swapped", "moe-sum-missing",
    "residual-from-before-attention", "quant-scales-of-neighbour", "quant-scales-in-half",
    "attention-in-half", "kv-one-for-all-layers", "rope-applied-twice",
    "kv-ring-overwritten", "lora-applied-twice", "lora-subtracted", "lora-other-module",
    "lora-in-half", "dora-gain-wrong", "lora-patterns-ignored", "lora-saved-modules-ignored",
    "moe-renorm-wrong-axis", "moe-experts-input-wrong", "kv-one-part-misplaced",
    "quant-scale-sign-lost", "quant-scales-and-biases-mixed", "tp-one-rank-alone",
    "softmax-plus-one", "head-first-for-all", "mask-last-block-unread",
    "rope-positions-begin-anew", "rope-cos-sin-exchanged",
    "softmax-blocks-mixed", "bias-behind-turn", "alibi-added", "moe-softmax-wrong-axis",
    "lora-rank-cut", "moe-expert-never-run", "moe-capacity-limited", "qk-norm-gains-mixed",
})  # fmt: skip

# The same before and behind the model.
ADDED_AROUND = frozenset({
    "bos-not-wanted", "eos-behind-prompt", "newline-changed", "text-encoding-misread",
    "chat-template-missing", "chat-template-of-another-model", "system-prompt-default",
    "thinking-flag", "template-content-trim", "template-whitespace", "normaliser-changed",
    "added-token-strips", "byte-fallback-missing", "prompt-stripped", "prompt-token-lost",
    "top-p-ties-kept", "drawing-order", "penalty-window", "logits-of-an-earlier-row",
    "sampled-rank-as-id", "uniform-of-another-step", "draw-at-the-border", "draw-sums-in-half",
    "top-p-sorted-ascending", "sampler-setting-ignored", "sampler-default-kept",
    "sampler-of-an-engine", "engine-defaults",
    "temperature-misapplied", "first-token-dropped", "prompt-fed-one-too-far",
    "token-handed-out-twice", "prompt-echoed", "max-tokens-off-by-one",
})  # fmt: skip

BATCH = "shows in a batch of unequal prompts alone"
SAMPLING = "shows in which tokens a decoder of several at once takes, not in the logits"
DEVICES = "is of several ranks: `explain MODEL DUMP --tensor-parallel N` looks for it"
REUSE = "needs a cache that served another prompt before"
CRASH = "crashes or fails to load"
LOGITS = "the logits are right: it is in what is done with them"


def needs(architectures: str) -> str:
    return f"needs an architecture that is not implemented: {architectures}"


LEFT_OUT: dict[str, dict[str, str]] = {
    "embedding": {
        "embed-multiplier-missing": needs("Granite, MiniCPM"),
        "embed-norm-missing": needs("BLOOM"),
    },
    "norm": {
        "norm-plus-one-low-precision": needs("Gemma 1 to 3, whose gains are stored less 1"),
        "qk-norm-kind": needs("Command-R+, StableLM 2")
        + "; in others it is layernorm-for-rmsnorm at self_attn.q_norm",
        "gated-norm-order": needs("Mamba 2, Qwen3-Next"),
        "gated-norm-group-size": needs("Mamba 2, Zamba 2"),
    },
    "activation": {
        "swiglu-clamp-missing": needs("gpt-oss"),
        "swiglu-oai-plus-one-alpha": needs("gpt-oss"),
        "relu-squared-missing": needs("Nemotron, nanochat")
        + "; in others it is act-name-from-wrong-field",
    },
    "residual": {
        "residual-multiplier-missing": needs("Granite, MiniCPM"),
    },
    "moe": {
        "moe-correction-bias-in-weights": needs("DeepSeek V3, GLM-4.5"),
        "moe-correction-bias-missing": needs("DeepSeek V3, GLM-4.5"),
        "moe-routed-scaling-missing": needs("DeepSeek V2 and V3"),
        "moe-group-topk": needs("DeepSeek V2 and V3"),
        "moe-topk-slice": CRASH + "; a slice of the wrong end is moe-selects-lowest",
        "moe-shared-expert-gate-missing": needs("Qwen2-MoE"),
        "moe-shared-expert-missing": needs("DeepSeek, Llama 4, Qwen2-MoE"),
        "moe-zero-expert-weights": needs("LongCat-Flash"),
    },
    "dtype": {
        "dtype-leak-to-f32": "nothing is wrong to see: values are finer than the port's dtype",
        "a-log-downcast": needs("Mamba 2, gated delta nets"),
        "ssm-state-half": needs("Qwen3-Next, Mamba 2"),
    },
    "logits": {
        "logit-scale-inverted": needs("Granite, Cohere"),
        "logits-wrong-position": BATCH,
        "padded-vocab-not-masked": LOGITS,
        "lm-head-bias-dropped": needs("Phi-1 and 2, GPT-J"),
    },
    "rope": {
        "mla-softmax-scale": needs("DeepSeek, Kimi (MLA)"),
        "rope-partial-ignored": needs("GLM-4, Phi, StableLM")
        + "; in Gemma 4 it is rope-proportional-missing",
        "rope-partial-factor-twice": needs("Ling/Bailing (MLA)"),
        "rope-rotated-slice-wrong-end": needs("DeepSeek, GLM (MLA)"),
        "rope-on-nope-layers": needs("Llama 4, SmolLM3, Cohere 2"),
        "rope-inv-freq-formula": "no bug: within the rounding that is legal for float32 angles",
        "rope-mrope-section-layout": needs("Qwen-VL") + "; text alone is the same",
        "rope-mrope-delta-lost": REUSE,
        "mla-rope-deinterleave": needs("DeepSeek, Kimi (MLA)"),
        "indexer-rope-style": needs("DeepSeek V3.2, GLM-MoE-DSA"),
        "rope-mutates-input": (
            "nothing else takes queries and keys before their turn in these architectures"
        ),
        "alibi-slopes-non-pow2": needs("BLOOM, MPT, Baichuan"),
        "alibi-slope-exponent": needs("BLOOM, MPT, Baichuan"),
        "relative-bias-decode-offset": needs("T5, MPT"),
    },
    "attention": {
        "attn-scale-pre-attn-scalar": needs("Gemma 2 and 3")
        + "; in Gemma 4 it is attn-scale-should-be-one",
        "attn-softcap-missing": needs("Gemma 2, Grok"),
        "attn-softcap-order": needs("Gemma 2, Grok"),
        "kv-reshape-with-q-heads": CRASH + ": the widths no longer fit",
        "repeat-kv-missing-on-v": CRASH + ": the numbers of heads no longer fit",
        "attn-sinks-missing": needs("gpt-oss"),
        "attn-sink-scaled-or-valued": needs("gpt-oss"),
        "attn-temperature-missing": needs("Llama 4, Ministral 3"),
        "attn-output-gate-missing": needs("Qwen3-Next"),
        "flash-finite-sentinel": (
            "needs scores below -50000, which these architectures do not reach"
        ),
        "fp8-or-int-index-overflow-32k": "shows beyond 32768 keys",
    },
    "mask": {
        "mask-all-blocked-nan": "no row of a prefill without padding is blocked altogether",
        "mask-sentinel-overflow": BATCH,
        "mask-prefix-bidirectional-missing": needs("PaliGemma, images"),
    },
    "kv_cache": {
        "kv-restore-offset-zero": REUSE,
        "kv-prefix-hit-block-table": REUSE,
        "kv-quant-unsupported-head-dim": CRASH,
        "kv-state-getter-decodes": "costs memory, changes no number",
    },
    "quantisation": {
        "quant-block-halves-index": "is in the writer of a file: what it read instead is not known",
        "affine-edge-not-on-grid": (
            "is in the writer of a file: MODEL's own numbers are taken as they are"
        ),
        "zero-group-scale": "is in the writer of a file, and gives NaN",
        "gptq-g-idx-ignored": "needs GPTQ files with an order of their own, which are not read",
        "fp8-block-size-derived": "needs the FP8 files of DeepSeek or Qwen, which are not read",
        "ue8m0-round-after-quantise": (
            "is in the writer of a file: MODEL's own numbers are taken as they are"
        ),
        "quant-uninitialised-padding": "what lies in the padding is not known, nor twice the same",
    },
    "gguf_layout": {
        "tensor-data-offset": (
            "what lies before a tensor in its file is not known to a run; `before` compares weights"
        ),
    },
    "loading": {
        "conv-weight-layout": needs("Mamba, hybrids"),
        "sanitise-not-idempotent": "is norm-plus-one-twice or gpt2-conv1d-transposed by its effect",
        "shard-index-ignored": (
            "what the stale duplicates hold is not known; `before` compares weights"
        ),
        "layer-kind-index": "by its effect mask-swa-global-swapped, or mask-layer-types-ignored",
    },
    "ssm": {
        "ssm-dt-clamp": needs("Mamba 2, Nemotron-H"),
        "ssm-softplus-half": needs("Mamba"),
        "gdn-decay-missing": needs("Qwen3-Next"),
        "recurrent-cache-not-advanced": needs("Qwen3.5"),
        "conv-state-window": needs("Mamba, LFM2"),
        "ssm-padding-updates-state": needs("Mamba, LFM2"),
        "ssm-d-skip-missing": needs("Mamba"),
        "ssm-mup-vector-missing": needs("Falcon-H1"),
    },
    "sampling": {
        "xtc-global-threshold": BATCH,
        "gumbel-half-precision": "is in a generator: uniforms are taken as they are said",
        "logprob-base-10": LOGITS,
        "dry-breaker-inverted": "DRY is not among the settings that are replayed",
    },
    "tokenizer": {
        "byte-fallback-detok": "shows in the text of an answer, which a dump does not hold",
        "template-modality-order": needs("vision models, images"),
    },
    "decoding": {
        "prefill-chunk-embeds-misaligned": needs("Qwen3-VL, whose images come in from the side")
        + "; of layers' own inputs it is per-layer-input-misaligned",
        "state-from-previous-request": REUSE,
        "concurrent-eval-race": CRASH,
    },
    "distributed": {
        "tp-rowparallel-bias": DEVICES,
        "tp-allreduce-missing": DEVICES,
        "tp-residual-in-partial": DEVICES,
        "tp-fused-shard-contiguous": DEVICES,
        "tp-kv-shard": DEVICES,
        "tp-local-norm-statistics": needs("norms over all heads of queries or keys"),
        "tp-replicated-expert-summed": DEVICES,
        "tp-vocab-parallel-mask": DEVICES,
        "tp-float-head-count": CRASH,
    },
    "speculative": {
        "spec-exact-match-accept": SAMPLING,
        "spec-residual-from-target": SAMPLING,
        "spec-draft-distribution-mismatch": SAMPLING,
        "diffusion-attention-direction": needs("LLaDA, Dream") + "; in others it is a mask",
        "spec-cache-rollback": "what was rejected, and stayed in the cache, is in no dump",
        "diffusion-physical-position": "needs dumps of WeDLM's rounds, which are not read",
        "diffusion-uncommitted-kv": "needs dumps of WeDLM's rounds, which are not read",
        "diffusion-entropy-distribution": SAMPLING,
    },
}  # fmt: skip


def left_out() -> dict[str, str]:
    """Return the reason of every class that is left out, by id."""
    return {id: reason for some in LEFT_OUT.values() for id, reason in some.items()}

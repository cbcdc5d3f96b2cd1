"""GGUF: one file, or several, that are a model with its tokenizer. Start at `gguf_parts`.

`file.py` gives named values and named tensors of the container, as they are written; `parts.py`
those of a model in several. `names.py`, `config.py`, `gemma4.py` and `rows.py` say what llama.cpp's
converter had done to a Hugging Face checkpoint, so that `checkpoint.py` can undo it.
"""

"""GGUF: one file that is a model, with its tokenizer. Start at `checkpoint.gguf_parts`.

`file.py` gives named values and named tensors of the container, as they are written. `names.py`,
`config.py` and `rows.py` say what llama.cpp's converter had done to a Hugging Face checkpoint, so
that `checkpoint.py` can undo it.
"""

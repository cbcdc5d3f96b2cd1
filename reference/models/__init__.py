"""One architecture a file, named after `model_type` in config.json. Each file has `stages` and
`layers_of_cache`, and reads top to bottom: attention, feed-forward, block, model."""

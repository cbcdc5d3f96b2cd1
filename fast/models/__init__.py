"""One architecture a file, named after `model_type` in config.json, each over the namespace of
operations that it is given: `fast.ops` or `fast.cpu`."""

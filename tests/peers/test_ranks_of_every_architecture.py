"""Two ranks and four in processes of their own, of every architecture, packed or not. By law."""

import pytest

from tests.fast.parallel.test_ranks import check, ran
from tests.wide_models import SOURCES, wide_model


# Of backend, packing and how many there are, each pair of two meets once.
@pytest.mark.parametrize(
    ("backend", "mode", "ranks"),
    [("mlx", None, 2), ("mlx", "affine", 4), ("cpu", None, 4), ("cpu", "affine", 2)],
)
def test_ranks_give_the_logits_of_one(tmp_path, backend, mode, ranks):
    models = [str(wide_model(tmp_path / name, name, mode=mode)) for name in SOURCES]
    check(ran(tmp_path, ranks, backend, models), backend, models)

"""docs/checkpoint.md says what the code does. By law: both name the same keys and limits."""

import re
from pathlib import Path

import pytest

from lockstep.reference.checkpoint import config, safetensors_header, sharded
from lockstep.reference.checkpoint.architectures import qwen3
from lockstep.reference.checkpoint.config_keys import IGNORED
from lockstep.reference.checkpoint.quantization import spellings

PAGE = Path(__file__).parents[3] / "docs" / "checkpoint.md"


CONFIG_FILES = ("config.py", "config_common.py", "rope_config.py", "architectures/qwen3.py")
CONFIG_FILES += ("architectures/__init__.py",)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_table_of_ignored_keys_is_complete(page: str) -> None:
    table = page.split("\nIgnored:\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(IGNORED)


def test_the_list_of_used_keys_is_complete(page: str) -> None:
    listed = set(re.findall(r"`(\w+)`", page.split("\nUsed: ")[1].split("\n\n")[0]))
    folder = Path(config.__file__).parent
    code = "".join((folder / name).read_text() for name in CONFIG_FILES)
    quoted = set(re.findall(r'"(\w+)"', code))
    assert listed <= quoted
    assert set(qwen3.Qwen3Config.__dataclass_fields__) <= listed


def test_the_limits(page: str) -> None:
    assert f"over {safetensors_header.HEADER_LIMIT >> 20} MiB" in page
    assert f"over {safetensors_header.ENTRY_LIMIT:,} entries" in page
    assert f"over {safetensors_header.NAME_LIMIT} characters" in page
    assert f"more than {safetensors_header.RANK_LIMIT} dimensions" in page
    assert f"config {config.CONFIG_LIMITS.size >> 20} MiB" in page
    assert f"index {sharded.INDEX_LIMITS.size >> 20} MiB" in page


def test_the_spellings(page: str) -> None:
    for name in spellings("model.layers.0.mlp.up_proj"):
        assert f"    {name}\n" in page

"""The prompts of a chat, turn by turn, against transformers' apply_chat_template."""

import shutil

import pytest
from transformers import AutoTokenizer

from lockstep import fast
from lockstep.parity.generating.chat import Chat
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.parity.conftest import DEMO

# As Qwen3's: thoughts of earlier turns go, and not to think is an empty thought.
THINKING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' and not loop.last %}"
    "{{- message.content.split('</think>')[-1].lstrip('\\n') }}"
    "{%- else %}{{- message.content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


class Noting(Generation):
    """Notes the prompt of each answer, and makes it look like a thought and an answer."""

    def run(self, tokens, max_tokens, say, **options):
        self.prompts.append(tokens)
        document = super().run(tokens, max_tokens, say, **options)
        thought = self.tokenizer.encode("<think>\nIt is 4.\n</think>\n\nFour.")
        return document | {"tokens": thought, "ended_by": "max tokens"}


@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("folder", [DEMO, DEMO.parent / "gemma4", "thinking"],
                         ids=["chatml", "gemma4", "thinking"])  # fmt: skip
def test_the_prompt_of_every_turn_is_transformers(folder, variables, tmp_path):
    if folder == "thinking":
        folder = shutil.copytree(DEMO, tmp_path / "model")
        (folder / "chat_template.jinja").write_text(THINKING)
    model = fast.load(folder, backend="cpu")
    made = Noting(model, SamplingOptions(), seeded(0), ignore_eos=False)
    made.prompts = []
    chat = Chat(made, load_tokenizer(folder), system="Be brief.", variables=variables)
    theirs = AutoTokenizer.from_pretrained(folder)
    for turn in ("What is 2+2?", "Tell me about a king.", "What is 2+2?"):
        asked = [*chat.messages, {"role": "user", "content": turn}]
        expected = theirs.apply_chat_template(asked, add_generation_prompt=True, **variables)
        chat.answer(turn, 8, lambda text: None)
        assert made.prompts[-1] == list(expected["input_ids"])
        assert "It is 4." in chat.messages[-1]["content"]

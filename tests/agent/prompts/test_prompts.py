"""What prompts say: every word of the fixed ones is in a file, and a few properties hold for all."""

import pytest

from tests.agent.prompts.corpus import CORPUS, FOLDER, plan_over, write
from tests.requirements import requirement


@pytest.mark.parametrize("name", CORPUS)
@requirement("prompt:every-word-reviewed")
def test_every_prompt_says_what_its_reviewed_file_says(name: str) -> None:
    assert write(CORPUS[name]()) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@requirement("prompt:planning-size")
def test_planning_over_200_tools_takes_at_most_3000_tokens() -> None:
    prompt = plan_over(200)
    assert (len(prompt.instructions) + len(prompt.text)) // 4 <= 3_000

# SPDX-License-Identifier: Apache-2.0
"""Exercises of the notebooks: answers that stay folded until the reader opens them."""


class Answer:
    """The answer to an exercise, folded where a notebook displays it.

    Args:
      text: Markdown, computed from the model that the question is about.
    """

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # Markdown inside an HTML element needs empty lines around it.
        return f"<details>\n<summary>Answer</summary>\n\n{self.text}\n\n</details>"

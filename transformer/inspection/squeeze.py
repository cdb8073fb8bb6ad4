# SPDX-License-Identifier: Apache-2.0
"""Scripts and styles without what no browser needs: comments, indentation, spaces."""

import re


def style(text: str) -> str:
    """A style sheet in which every comment has lines of its own, and no selector a space before a
    colon.
    """
    kept = _squeezed(_without_comments(text), "=*/<>:;,{}")
    return kept.replace("\n", "")


def script(text: str) -> str:
    """A script in which every comment has lines of its own, every statement ends with a semicolon,
    and no template literal stands within another. No line ends within a string.
    """
    # What stands between quotes stays as it is.
    pieces = re.split(r"""("[^"\n]*"|`[^`]*`)""", _declared_together(_without_comments(text)))
    pieces[::2] = [
        re.sub(r"(?<![+-]) ([+-]) (?![+-])", r"\1", _squeezed(code, "=*/<>?:;,&|(){}[]"))
        for code in pieces[::2]
    ]
    return re.sub(r"(?<=[,;{(\[])\n", "", "".join(pieces))


def _without_comments(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))


def _declared_together(code: str) -> str:
    """Code in which constants that follow each other, a line each, are declared at once."""
    lines = [""]
    for line in code.splitlines():
        before = lines[-1]
        whole = before.startswith("const ") and before.endswith(";")
        level = sum(map(before.count, "([{")) == sum(map(before.count, ")]}"))
        if whole and level and line.startswith("const "):
            lines[-1] = f"{before[:-1]}, {line.removeprefix('const ')}"
        else:
            lines.append(line)
    return "\n".join(lines[1:])


def _squeezed(code: str, separators: str) -> str:
    """Code without spaces around what separates names anyway, and without the last semicolon of a
    block.
    """
    code = re.sub(rf" ?([{re.escape(separators)}]) ?", r"\1", code)
    return re.sub(r";\n?\}", "}", code)

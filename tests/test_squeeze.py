# SPDX-License-Identifier: Apache-2.0
"""Scripts and styles get shorter and stay the same program."""

import pathlib
import re
import shutil
import subprocess

import pytest

from transformer.inspection import squeeze

VIEWS = pathlib.Path(squeeze.__file__).parent / "views"
SCRIPTS = sorted(VIEWS.glob("*.js"))
STYLES = sorted(VIEWS.glob("*.css"))


def named(path):
    return path.name


def test_there_are_scripts_and_styles():
    assert {"common.js", "heads.js", "start.js"} <= {path.name for path in SCRIPTS}
    assert "views.css" in {path.name for path in STYLES}


def test_comments_indentation_and_spaces_go_and_what_is_quoted_stays():
    text = """
    // A comment.
    const a = (b, c) => {
      return b + c - -1 + ++c;
    };
    const told = "x  =  1; { }" + `y  ( ${a(1, 2)} ) `;
    """
    assert squeeze.script(text) == (
        'const a=(b,c)=>{return b+c - -1 + ++c};const told="x  =  1; { }"+`y  ( ${a(1, 2)} ) `;'
    )


def test_constants_that_follow_each_other_are_declared_at_once():
    text = """
    const a = 1, b = [2];
    const c = d => {
      const e = d + a;
      const f = e;
      return f;
    };
    const g = c(a,
      b);
    const h = g;
    """
    assert squeeze.script(text) == (
        "const a=1,b=[2],c=d=>{const e=d+a,f=e;return f};const g=c(a,b);const h=g;"
    )


def test_a_style_loses_what_it_may_and_keeps_a_descendant_and_a_sum():
    text = """
    /* A comment. */
    .a .b > c {
      width: calc(1px - 2px);
      color: red
    }
    @media (print) { p { x: y } }
    """
    assert squeeze.style(text) == (".a .b>c{width:calc(1px - 2px);color:red}@media (print){p{x:y}}")


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_no_template_literal_stands_within_another(path):
    for literal in re.findall("`[^`]*`", path.read_text(encoding="utf-8")):
        assert literal.count("{") == literal.count("}"), literal


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_every_script_says_whose_it_is_and_what_for(path):
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first == "// SPDX-License-Identifier: Apache-2.0"
    assert second.startswith("// ")


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js; a browser reads them too")
def test_squeezed_scripts_are_programs(tmp_path):
    paths = [tmp_path / path.name for path in SCRIPTS]
    for path, short in zip(SCRIPTS, paths, strict=True):
        short.write_text(squeeze.script(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in paths:
        subprocess.run(["node", "--check", path], check=True, timeout=120)

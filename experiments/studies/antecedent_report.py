# SPDX-License-Identifier: Apache-2.0
"""Write the results of the study `antecedent`: findings, table, picture, atlas.

python -m experiments.studies.antecedent_report --measured=docs/antecedent --output=docs

writes antecedent.png and antecedent_atlas.html: one dot a model, whose views a click opens. It also
writes the findings and the table into antecedent.md, between the comments that name them. Nothing
is measured here, so it takes seconds.
"""

import dataclasses

from experiments.cli.command_line import run
from experiments.studies import antecedent_atlas, antecedent_page, study_tables
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.inspection import figures


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the measurements are, and where the report goes."""

    measured: str = "docs/antecedent"
    """Directory of the measured files."""
    output: str = "docs"
    """Directory of page, picture and atlas."""


def main(options: Options) -> None:
    """Write the picture, the atlas and two sections of the page; print the findings."""
    output = paths.absolute(options.output)
    models = antecedent_page.read(paths.absolute(options.measured))
    found = "".join(f"- {finding}\n" for finding in antecedent_page.findings(models))
    print(found, end="")
    rows = [antecedent_page.row_of(model) for model in models]
    sections = {"findings": found, "models": study_tables.markdown(antecedent_page.COLUMNS, rows)}
    of_design = [model for model in models if "recipe" in model]
    figures.save(antecedent_page.picture(of_design), output / "antecedent.png")
    workdir_files.write_text(output / "antecedent_atlas.html", antecedent_atlas.page(models))
    page = output / "antecedent.md"
    text = antecedent_page.refreshed(page.read_text(encoding="utf-8"), sections)
    workdir_files.write_text(page, text)


if __name__ == "__main__":
    run(main, None, Options)

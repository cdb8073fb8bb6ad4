# SPDX-License-Identifier: Apache-2.0
"""What XLA makes of a function."""

import re

import jax


def operand_types(function, *given):
    """The number formats of the operands of each matmul in the program that XLA makes."""
    found = []
    for computation in jax.jit(function).lower(*given).compile().as_text().split("\n}"):
        types = dict(re.findall(r"%([\w.-]+) = (\w+)\[", computation))
        for operands in re.findall(r" dot\((.*?)\)", computation):
            found.append({types[name] for name in re.findall(r"%([\w.-]+)", operands)})
    return found

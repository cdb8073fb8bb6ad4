# SPDX-License-Identifier: Apache-2.0
"""What JAX and XLA make of a function."""

import re

import jax
import oracle


def matmul_dtypes(jaxpr):
    """The dtypes of both operands and of the result of each matmul of a jaxpr, in its order."""
    return [
        tuple(var.aval.dtype.name for var in (*equation.invars, *equation.outvars))
        for equation in oracle.equations(jaxpr.jaxpr)
        if equation.primitive.name == "dot_general"
    ]


def operand_types(function, *given):
    """The number formats of the operands of each matmul in the program that XLA makes."""
    found = []
    for computation in jax.jit(function).lower(*given).compile().as_text().split("\n}"):
        types = dict(re.findall(r"%([\w.-]+) = (\w+)\[", computation))
        for operands in re.findall(r" dot\((.*?)\)", computation):
            found.append({types[name] for name in re.findall(r"%([\w.-]+)", operands)})
    return found

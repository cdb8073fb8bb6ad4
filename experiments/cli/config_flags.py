# SPDX-License-Identifier: Apache-2.0
"""The config of an app, from ``--config`` or ``--workdir``, with overrides of its fields.

``--config.FIELD=VALUE`` overrides a field of the frozen `Config`, which is validated again.
"""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import os
import pathlib
import re
import typing
from collections.abc import Sequence
from typing import Any, Literal

from transformer import paths, user_functions
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig, ModelConfig
from transformer.errors import InputError
from transformer.fields import difference, field_types, flat, unknown_field

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
OVERRIDE = re.compile(r"--?(no)?config\.([^=]+)(=)?(.*)", re.DOTALL)
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_MISSING = {
    "config": "--config=NAME or --config=FILE.py, for example --config=pronouns",
    "workdir": "--workdir=DIRECTORY, where train left its results",
}


def load(
    arguments: Sequence[str], config_from: Literal["config", "workdir"]
) -> tuple[Config, list[str]]:
    """The config that the command line describes, and the arguments that are no part of it.

    Without ``--config`` it is that of the workdir that ``--workdir`` names, if there is one.

    Raises:
      InputError: for a missing or invalid config or override.
    """
    if config_from == "workdir":
        trained = workdir_files.load_inference_config(take_flag(arguments, "workdir")[0])
        config, others = override(trained, arguments)
        _require_free(trained, config)
        return config, others
    names = {argument.partition("=")[0].lstrip("-") for argument in arguments}
    if "config" not in names and "workdir" in names:
        workdir, _ = take_flag(arguments, "workdir")
        if (paths.reachable(workdir) / workdir_files.CONFIG).exists():
            return override(workdir_files.load_config(workdir), arguments)
    name, others = take_flag(arguments, "config")
    return override(completed(load_config_file(name), others), others)


def take_flag(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the value of ``--name=value`` or ``--name value``, and the other arguments.

    Of several values the last counts, as with all flags.
    """
    value, others = "", []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, text = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            value = text if equals else next(rest, "")
        else:
            others.append(argument)
    if not value:
        raise InputError(f"missing {_MISSING[name]}")
    return value, others


def override(config: Config, arguments: Sequence[str]) -> tuple[Config, list[str]]:
    """Apply ``--config.FIELD=VALUE``, ``--config.FIELD VALUE`` and ``--noconfig.FIELD``.

    With another ``--config.model.family``, the fields that both families have keep their values.

    Returns:
      The validated config and the other arguments.
    """
    family = _overrides(arguments).get("model.family", config.model.family)
    if family != config.model.family:
        config = _of_family(config, family)
    known, values, others = flat(config), dataclasses.asdict(config), []
    rest = iter(arguments)
    for argument in rest:
        match = OVERRIDE.fullmatch(argument)
        if not match:
            others.append(argument)
            continue
        negated, path, equals, text = match.groups()
        if path.partition("[")[0] in known and "[" in path:
            raise InputError(
                f"--config.{path}: give all elements, --config.{path.partition('[')[0]}=(8,16)"
            )
        if path not in known:
            raise InputError(unknown_field(path, list(known)))
        group, _, name = path.partition(".")
        kind = field_types(type(getattr(config, group)))[name]
        if not equals:
            text = str(not negated) if kind is bool else next(rest, "")
        values[group][name] = parse_value(text, kind)
    return type(config).from_dict(values), others


def _of_family(config: Config, family: str) -> Config:
    """The config with a model of another family."""
    model = ModelConfig.variant({"family": family})
    old, names = dataclasses.asdict(config.model), {each.name for each in dataclasses.fields(model)}
    shared = {name: value for name, value in old.items() if name in names - {"family"}}
    return config.replace(model=model.from_dict(shared))


def _require_free(trained: Config, config: Config) -> None:
    """Refuse overrides that a trained model does not allow."""
    for path, (old, new) in difference(trained, config).items():
        if not workdir_files.may_change_after_training(path, trained):
            raise InputError(
                f"{path} is {old!r} in the training of this model, and cannot be {new!r} after it; "
                f"leave --config.{path} out"
            )


def parse_value(text: str, kind: Any) -> Any:
    """Return the value of a field of type `kind`; invalid text is returned for the validation."""
    kinds = typing.get_args(kind) or (kind,)
    if text == "None" and type(None) in kinds:
        return None
    with contextlib.suppress(ValueError, SyntaxError):
        if typing.get_origin(kind) is tuple:
            return ast.literal_eval(text)
        if int in kinds:
            return int(float(text)) if float(text).is_integer() and "e" in text else int(text)
        if float in kinds:
            return float(text)
    return _BOOLEANS.get(text.lower(), text) if bool in kinds else text


def load_config_file(flag: str) -> Config:
    """Return the config of ``NAME[:ARGUMENT]`` in `experiments.configs`, or of a file of the user.

    A file ``.json`` is the ``config.json`` of a workdir. Any other file defines ``get_config()``,
    or ``get_config(argument)``.
    """
    path, colon, argument = flag.partition(":")
    if not pathlib.Path(path).is_file():
        shipped = {file.stem: str(file) for file in sorted(CONFIGS.glob("*.py"))}
        if path not in shipped:
            raise InputError(
                f"--config={flag}: no file {path}; name a file, or one of the configs "
                f"{', '.join(shipped)}"
            )
        path = shipped[path]
    if path.endswith(".json"):
        return Config.from_json(pathlib.Path(path).read_text(encoding="utf-8"), path)
    module = user_functions.load_module(path)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} does not define get_config()")
    parameters = inspect.signature(module.get_config).parameters
    if colon and not parameters:
        raise InputError(f"--config={flag}: get_config() of {path} takes no argument after ':'")
    required = [one for one in parameters.values() if one.default is one.empty]
    if required and not colon:
        raise InputError(f"--config={flag}: get_config() needs an argument; write {path}:ARGUMENT")
    with user_functions.located(path):
        config = module.get_config(*([argument] if colon else []))
    if not isinstance(config, Config):
        raise InputError(f"get_config() of {path} returned {type(config).__name__}, not a Config")
    return config


def completed(config: Config, arguments: Sequence[str]) -> Config:
    """Apply the recipe of a config, if it has one, to the text or the model of the overrides.

    A workdir on the command line continues with the config that it was started with.

    Raises:
      InputError: when the text or the model cannot be read.
    """
    recipe, given, saved = config.training.recipe, _overrides(arguments), None
    if recipe is None:
        return config
    from experiments.data import recipes  # a third of a second, which others need not wait

    with contextlib.suppress(InputError):
        saved = workdir_files.load_config(take_flag(arguments, "workdir")[0])
    if recipe == "fine_tune":
        init_from = given.get("training.init_from")
        if saved and init_from and saved.training.init_from == os.fspath(paths.absolute(init_from)):
            return saved
        return recipes.fine_tune(config, init_from)
    if saved and recipe == "auto" and saved.data.dataset == config.data.dataset:
        return saved
    kinds = field_types(DataConfig)
    text = {
        name: parse_value(given[f"data.{name}"], kinds[name])
        for name in recipes.TEXT_FIELDS
        if f"data.{name}" in given
    }
    return recipes.fit(recipe, config.data.replace(**text), config)


def _overrides(arguments: Sequence[str]) -> dict[str, str]:
    """The text of each override on the command line, by field."""
    values = {}
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if match := OVERRIDE.fullmatch(argument):
            values[match[2]] = match[4] if match[3] else following
    return values

# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of transports read from their command lines alike."""
import pathlib


def size_of(text):
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def pairs(values, separator, what, parser):
    for value in values:
        left, found, right = value.partition(separator)
        if not found or not left or not right:
            parser.error(f"{what}: '{value}' has no {separator}")
        yield left, right


def environments(o, parser):
    env = {}
    for name, assignment in pairs(o.env, ":", "--env", parser):
        for variable, value in pairs([assignment], "=", "--env", parser):
            env.setdefault(name, {})[variable] = value
    return env


def named_plugin(value):
    """"NAME=PATH", or a path whose NAME is that of libnccl-net-NAME.so."""
    name, found, path = value.partition("=")
    return (name, path) if found else (pathlib.Path(value).stem.removeprefix("lib").removeprefix("nccl-net-"), value)


def chosen(columns, only, env, parser):
    """Those that --only names, or all."""
    keys = [c.key for c in columns]
    wanted = only.split(",") if only else keys
    for name in [*wanted, *env]:
        if name not in keys:
            parser.error(f"no such column: {name}; there are {', '.join(keys)}")
    if len(set(keys)) != len(keys):
        parser.error(f"two columns have one name: {', '.join(keys)}")
    return [c for c in columns if c.key in wanted]

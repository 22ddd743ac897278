"""What a compiled program sends between devices and multiplies, read from its text."""

import math
import re
from typing import NamedTuple

SENT = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"
OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\((.*)$")
HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
CALLED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
ITEMSIZE = {"f32": 4, "f64": 8, "s32": 4, "u32": 4, "pred": 1}


class Exchange(NamedTuple):
    kind: str
    nbytes: int  # of its result, in all runs
    depth: int  # loops around it


class Program(NamedTuple):
    exchanges: list[Exchange]
    flops: int  # of matrix products, on one device, in all runs


def read(text: str) -> Program:
    """Loop bodies are counted as often as they run, all branches as if each did; a loop of unknown length is an error."""
    computations, entry = _computations(re.sub(r"/\*index=\d+\*/", "", text))
    exchanges, flops = [], 0
    waiting = [(entry, 1, 0)]
    while waiting:
        name, runs, depth = waiting.pop()
        shapes = {match[1]: match[2] for match in computations[name]}
        for match in computations[name]:
            kind = match[3].removesuffix("-start")
            if re.fullmatch(SENT, kind):
                exchanges.append(Exchange(kind, runs * _bytes(match[2]), depth))
            if kind == "dot":
                flops += runs * _flops(match, shapes)
            more, inner = (1, depth)
            if kind == "while":
                more, inner = int(TRIPS.search(match[0])[1]), depth + 1
            called = CALLED.findall(match[0])
            if branches := BRANCHES.search(match[0]):
                called += re.findall(r"[\w.-]+", branches[1])
            waiting += [(name, runs * more, inner) for name in called]
    return Program(exchanges, flops)


def sent(program: Program, kind: str, n_devices: int) -> int:
    """Bytes that a device sends in exchanges of this kind; of all-reduces the bytes of the arrays."""
    total = sum(exchange.nbytes for exchange in program.exchanges if exchange.kind == kind)
    share = {"all-gather": (n_devices - 1) / n_devices, "reduce-scatter": n_devices - 1}
    return round(share.get(kind, 1) * total)


def _computations(text: str) -> tuple[dict[str, list[re.Match]], str]:
    """(Operations of each computation, the name of the first)."""
    found, entry, name = {}, "", None
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head[1]
            found[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name is not None and (match := OPERATION.match(line)):
            found[name].append(match)
    return found, entry


def _sizes(shape: str) -> list[tuple[str, list[int]]]:
    parts = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return [(kind, [int(n) for n in sizes.split(",") if n]) for kind, sizes in parts]


def _bytes(shape: str) -> int:
    return sum(ITEMSIZE[kind] * math.prod(sizes) for kind, sizes in _sizes(shape))


def _flops(match: re.Match, shapes: dict[str, str]) -> int:
    left = re.match(r"(?:\w+\[\S* )?%?([\w.-]+)", match[4])[1]
    contracted = [
        int(i) for i in re.search(r"lhs_contracting_dims=\{([\d,]*)\}", match[4])[1].split(",") if i
    ]
    (_, sizes), (_, out) = _sizes(shapes[left])[0], _sizes(match[2])[0]
    return 2 * math.prod(out) * math.prod(sizes[i] for i in contracted)

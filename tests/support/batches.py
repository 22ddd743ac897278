"""Batches of factorisations in a compiled program that do not wait for each other: on two threads they may wait for ever (`priors._after`)."""

import re

BODIES = re.compile(r"\n(?=(?:ENTRY )?%?[\w.\-]+ \(.*\) -> .*\{\n)")
BATCH = re.compile(r"[fs]\d+\[(\d+),\d+,\d+")
PARTS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")


def independent_batches(program: str) -> list[tuple[str, str]]:
    """Pairs of instructions of one computation of this optimised HLO, each a batch of LAPACK's or what holds one, neither of which needs the other."""
    bodies = {}
    for text in BODIES.split(program):
        if (head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(", text)) is not None:
            lines = (re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$", line) for line in text.split("\n")[1:])
            bodies[head[1]] = {line[1]: line[2] for line in lines if line is not None}

    def has_batch(instruction: str) -> bool:
        if "lapack_" in instruction:
            return any(int(size) > 1 for size in BATCH.findall(instruction))
        return any(
            map(has_batch, (i for part in PARTS.findall(instruction) for i in bodies.get(part, {}).values()))
        )

    found = []
    for body in bodies.values():
        needs: dict[str, set[str]] = {}
        for name, instruction in body.items():
            direct = {word for word in re.findall(r"[\w.\-]+", instruction) if word in needs}
            needs[name] = direct.union(*(needs[word] for word in direct))
        batches = [name for name, instruction in body.items() if has_batch(instruction)]
        found += [(a, b) for k, b in enumerate(batches) for a in batches[:k] if a not in needs[b]]
    return found

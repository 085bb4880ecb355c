#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""error_plot.py FILE.svg: how far sums are off, against how small an element is beside the largest of its block. Sums of 2 and
of 8 ranks by the library, in its default mode with 32 and with 16 bits and in exact mode, and by additions of float32 as a
ring does them, all against the exact sum. Needs numpy, python3-torch and a build; draws without further packages."""
import math
import sys
import tempfile

import numpy

import sums

BLOCK, BLOCKS, BINADES = 256, 400, 40
MODES = (("default, 32 bits", {"SWITCHML_EXACT": "0", "SWITCHML_FLOAT_BITS": "32"}),
         ("default, 16 bits", {"SWITCHML_EXACT": "0", "SWITCHML_FLOAT_BITS": "16"}),
         ("exact mode", {"SWITCHML_EXACT": "1"}))
LEAST, MOST = -28, 2  # log2 of an error over the sum of magnitudes
WIDTH, HEIGHT, LEFT, TOP = 300, 240, 58, 52


def drawn(ranks):
    """One tensor: in each block one element near 1, the others 1 to 2^-39 times as large, on each rank alike."""
    random = numpy.random.default_rng(ranks)
    down = random.integers(0, BINADES, BLOCK * BLOCKS)
    down[::BLOCK] = 0
    digits = random.uniform(1, 2, (ranks, BLOCK * BLOCKS)) * random.choice([-1.0, 1.0], (ranks, BLOCK * BLOCKS))
    digits[:, ::BLOCK] = 1.99
    return down, numpy.ldexp(digits, -down).astype(numpy.float32)


def errors(found, values, down):
    """For each binade log2 of the mean of |error| / sum of magnitudes; None: there is no error."""
    exact = numpy.array([math.fsum(each) for each in zip(*values.tolist())])
    share = numpy.abs(found.astype(numpy.float64) - exact) / numpy.abs(values).astype(numpy.float64).sum(axis=0)
    return [float(numpy.log2(max(share[down == each].mean(), 2.0**LEAST))) for each in range(BINADES)]


def lines_of(ranks, folder):
    down, values = drawn(ranks)
    lines = {name: errors(sums.by_library([values], folder, **variables)[0], values, down) for name, variables in MODES}
    ring = values[0].copy()
    for each in values[1:]:
        ring += each  # in float32
    lines["float32, ring"] = errors(ring, values, down)
    return lines


def panel(at, ranks, lines):
    left = LEFT + at * (WIDTH + 70)
    y_of = lambda value: TOP + HEIGHT * (MOST - min(value, MOST)) / (MOST - LEAST)
    x_of = lambda binade: left + WIDTH * binade / (BINADES - 1)
    parts = [f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{ranks} ranks</text>']
    for value in range(-24, MOST, 8):
        parts.append(f'<path class="grid" d="M{left} {y_of(value):.0f}h{WIDTH}"/><text x="{left - 6}" y="{y_of(value) + 4:.0f}" '
                     f'text-anchor="end">{"1" if value == 0 else f"2^{value}"}</text>')
    for binade in range(0, BINADES, 10):
        parts.append(f'<text x="{x_of(binade):.0f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
                     f'{"1" if binade == 0 else f"2^-{binade}"}</text>')
    for i, values in enumerate(lines.values()):
        points = " ".join(f"{x_of(binade):.1f},{y_of(value):.1f}" for binade, value in enumerate(values))
        parts.append(f'<polyline class="l{i}" points="{points}"/>')
    return "\n".join(parts)


def main(path):
    with tempfile.TemporaryDirectory(prefix="switchml-errors-") as folder:
        found = {ranks: lines_of(ranks, folder) for ranks in (2, 8)}
    names, bottom = list(found[2]), TOP + HEIGHT
    legend = "".join(f'<path class="l{i}" d="M{LEFT + 170 * i} {bottom + 58}h26"/><text x="{LEFT + 32 + 170 * i}" y="{bottom + 62}">'
                     f'{name}</text>' for i, name in enumerate(names))
    with open(path, "w", encoding="ascii") as file:
        file.write(f'''<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{bottom + 76}" viewBox="0 0 760 {bottom + 76}" font-family="sans-serif" font-size="12">
<style>
svg {{ background: #ffffff }} text {{ fill: #222222 }} .grid {{ stroke: #dddddd }}
polyline, path {{ fill: none; stroke-width: 2 }} .grid {{ stroke-width: 1 }}
.l0 {{ stroke: #c1272d }} .l1 {{ stroke: #e8821e }} .l2 {{ stroke: #3f8f3f }} .l3 {{ stroke: #2b6cb0; stroke-dasharray: 5 3 }}
@media (prefers-color-scheme: dark) {{ svg {{ background: #16181c }} text {{ fill: #e6e6e6 }} .grid {{ stroke: #3a3d44 }} }}
</style>
<text x="12" y="20" font-size="14">Mean error over the sum of magnitudes, against an element's size beside its block's largest</text>
{panel(0, 2, found[2])}
{panel(1, 8, found[8])}
<text x="{LEFT}" y="{bottom + 36}">an element's size beside the largest of its block</text>
{legend}
</svg>
''')
    for ranks, lines in found.items():
        for name, values in lines.items():
            print(f"{ranks} ranks, {name}: at 1, 2^-10, 2^-20, 2^-30: " + ", ".join(f"2^{values[each]:.1f}" for each in (0, 10, 20, 30)))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    main(sys.argv[1])

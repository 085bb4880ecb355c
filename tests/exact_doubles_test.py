#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exact_doubles_test.py [--elements N] [--seed S]: exact sums and averages of doubles against Python's integers, which
have no limit, and its division of them, which is rounded once. Without arguments 30,000 elements, as in make check;
10,000,000 take some minutes. Only the layout of a double is known here, nothing of limbs."""
import argparse, os, random, struct, subprocess, sys

PROGRAM = os.environ.get("SML_DOUBLES", "build/tests/doubles")
UNIT = 1 << 1074
SIGN, FIELD, FRACTION = 1 << 63, 0x7ff << 52, (1 << 52) - 1
NAN, LARGEST = 0x7ff8 << 48, FIELD - 1
WORLDS = [2] * 6 + [3] * 6 + [4] * 6 + [5, 7, 8, 8, 9, 16, 17, 33, 64, 129]
RARE_WORLDS = [1000, 4095, 4096]
ELEMS = 128


def integer(bits):
    """What a finite double is in units of 2^-1074."""
    field = (bits & FIELD) >> 52
    value = (bits & FRACTION | (1 << 52 if field else 0)) << (field - 1 if field else 0)
    return -value if bits & SIGN else value


def expected(column, is_average):
    """The bits of the exact sum, rounded once to nearest, ties to even, as IEEE 754 has it."""
    if any(bits & FIELD == FIELD for bits in column):
        special = {bits for bits in column if bits & FIELD == FIELD}
        if special == {FIELD} or special == {FIELD | SIGN}:
            return special.pop()
        return NAN
    if all(bits == SIGN for bits in column):
        return SIGN
    total = sum(map(integer, column))
    if total == 0:
        return 0
    try:
        value = total / (UNIT * len(column) if is_average else UNIT)
    except OverflowError:
        return FIELD | (SIGN if total < 0 else 0)
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def near(rng, bits, distance):
    """Another double whose exponent is at most so far from that of bits."""
    field = max(0, min(0x7fe, ((bits & FIELD) >> 52) + rng.randint(-distance, distance)))
    return rng.getrandbits(52) | field << 52 | rng.getrandbits(1) << 63


def anything(rng, num):
    column = [rng.getrandbits(64) for _ in range(num)]
    return [bits if bits & FIELD != FIELD else bits ^ 1 << 55 for bits in column]


def alike(rng, num):
    first = rng.getrandbits(52) | rng.randrange(0x7ff) << 52
    return [near(rng, first, rng.choice((0, 3, 60))) for _ in range(num)]


def cancelling(rng, num):
    """Pairs that cancel, but for a bit at the end; what is left lies anywhere below."""
    column = anything(rng, num)
    for i in range(0, num - 1, 2):
        column[i + 1] = column[i] ^ SIGN ^ (rng.getrandbits(1) if rng.random() < 0.5 else 0)
    if num > 2 and rng.random() < 0.7:
        column[-1] = rng.getrandbits(rng.randrange(1, 63))
    return [bits if bits & FIELD != FIELD else bits ^ 1 << 55 for bits in column]


def ties(rng, num):
    """A number, half a unit of its last place, and perhaps something far below that decides."""
    field = rng.randrange(54, 0x7fe)
    sign = rng.getrandbits(1) << 63
    column = [rng.getrandbits(52) | field << 52 | sign, (field - 53) << 52 | sign ^ (rng.getrandbits(1) << 63)]
    if rng.random() < 0.6 and num > 2:
        column.append(rng.getrandbits(rng.randrange(1, 62)) % max(1, (field - 53) << 52) | rng.getrandbits(1) << 63)
    return column + [rng.choice((0, SIGN)) for _ in range(num - len(column))]


def tiny(rng, num):
    return [rng.getrandbits(rng.choice((1, 3, 52, 53, 54))) | rng.getrandbits(1) << 63 for _ in range(num)]


def huge(rng, num):
    """About the end of the range: what is beyond it only on the way comes back."""
    column = [rng.choice((LARGEST, LARGEST - 1, 0x7fe << 52, 970 << 52, 969 << 52 | FRACTION, 1023 + 970 << 52,
                          1023 + 969 << 52 | FRACTION, 1)) | rng.getrandbits(1) << 63 for _ in range(num)]
    if rng.random() < 0.5:
        column[1] = column[0] ^ SIGN
    return column


def special(rng, num):
    """Zeros of both signs, infinities, NaNs of any kind."""
    few = rng.choice(((0, SIGN), (SIGN,), (0, SIGN, 1, 1 | SIGN), (SIGN, FIELD), (FIELD, FIELD | SIGN),
                      (FIELD | SIGN, LARGEST), (FIELD | 1, 0), (FIELD | SIGN | 1 << 51, FIELD)))
    return [rng.choice(few) for _ in range(num)]


KINDS = [anything, alike, cancelling, ties, tiny, huge, special]


def make_record(rng):
    num = rng.choice(RARE_WORLDS if rng.random() < 0.002 else WORLDS)
    elems = rng.randint(1, 3) if num > 200 else ELEMS
    is_average = rng.random() < 0.3
    columns = []
    for _ in range(elems):
        column = KINDS[rng.randrange(len(KINDS))](rng, num)
        rng.shuffle(column)
        columns.append(column)
    data = struct.pack("=III", num, elems, is_average)
    data += b"".join(struct.pack(f"={elems}Q", *row) for row in zip(*columns))
    return data, columns, is_average


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=30000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"TAP version 13\n1..1\n# seed {options.seed}", flush=True)
    done = 0
    with subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        while done < options.elements:
            data, columns, is_average = make_record(rng)
            program.stdin.write(data)
            program.stdin.flush()
            answer = program.stdout.read(8 * len(columns))
            if len(answer) != 8 * len(columns):
                sys.exit(f"not ok 1 - exact doubles\n# the program ended, with status {program.wait()}")
            for column, got in zip(columns, struct.unpack(f"={len(columns)}Q", answer)):
                want = expected(column, is_average)
                if got != want:
                    sys.exit(f"not ok 1 - exact doubles\n# seed {options.seed}, {'AVG' if is_average else 'SUM'} of "
                             f"{[hex(bits) for bits in column]}: {got:#018x}, not {want:#018x}")
            done += len(columns)
        program.stdin.close()
    print(f"# {done} elements\n{'not ok' if program.returncode else 'ok'} 1 - exact doubles")


main()

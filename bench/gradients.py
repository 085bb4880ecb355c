#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gradients.py [--ranks N] [--steps 0,1,3,10,20,40,70] [--networks NAME,...] [--check] [--save FOLDER] [--again]: what blocks
of real gradients are like. Trains two networks on Fashion-MNIST and a transformer on a text (Debian: dataset-fashion-mnist, python3-torch) with the
gradients of N ranks in one process, and says of the gradients at some steps, by blocks of 256 of each tensor:

    default   share of elements, and of blocks with one, whose error is above 2^-9 sum |x_r|
    ring      share of blocks by lanes that keep each error below (n - 1) 2^-24 sum |x_r|
    exact     share of blocks by lanes an element in exact mode, and bytes on the wire a byte of float32, codes included
    equal     share of neighbours with the same code

--again says instead which share of blocks, of chunks of 360 elements and of operations of 64 KiB has only codes that it
had in the step before. Errors are those that the format makes of these values, not its bound. --check sums each tensor by the library in N
processes (needs a build), too: in the default mode no error may be above the block's bound of docs/numerics.md, and in
exact mode each sum must be the exact one, rounded once. --save keeps the gradients as numpy files."""
import argparse
import collections
import fractions
import math
import os
import sys
import tempfile

import numpy
import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../demo"))
import fashion  # noqa: E402  # pylint: disable=wrong-import-position
import sums  # noqa: E402  # pylint: disable=wrong-import-position

BLOCK, BATCH, FLUSHED = 256, 16, 2.0**-100
CHUNK, OPERATION = 360, 64  # elements of a packet at MTU 1500; blocks of 64 KiB
CELL_BITS, VALUE_BITS, LEAST = 8, 277, -149  # docs/PROTOCOL.md section 6, "Exact mode"
FRAMING = 1472 / 1440


def dense():
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 10))


def convolutional():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3),
                         nn.ReLU(), nn.Flatten(), nn.Linear(64 * 11 * 11, 64), nn.ReLU(), nn.Linear(64, 10))


class Transformer(torch.nn.Module):
    """Which byte follows, as examples/pytorch/fsdp2.py learns it."""

    def __init__(self, length=64, width=96):
        super().__init__()
        nn = torch.nn
        self.bytes, self.places = nn.Embedding(256, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 256)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, text):
        return self.head(self.layers(self.bytes(text) + self.places, self.mask)).flatten(0, 1)


def pictures(count):
    """Batch `at`: images and labels."""
    images, labels = fashion.load("train", BATCH * count)
    images = images.view(-1, 1, 28, 28)
    return lambda at: (images[at * BATCH:(at + 1) * BATCH], labels[at * BATCH:(at + 1) * BATCH])


def licence(_count):
    """Batch `at`: bytes of a text that every Debian has, and those that follow."""
    with open("/usr/share/common-licenses/GPL-3", "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()

    def batch(at):
        drawn = torch.Generator().manual_seed(at)
        where = torch.randint(len(text) - 64, (BATCH, 1), generator=drawn) + torch.arange(64)
        return text[where], text[where + 1].flatten()
    return batch


NETWORKS = {"dense": (dense, pictures), "convolutional": (convolutional, pictures), "transformer": (Transformer, licence)}


def recorded(make_network, make_data, ranks, steps):
    """(step, [for each tensor: array of ranks x elements]) at these steps."""
    torch.manual_seed(1)
    network, batch_of = make_network(), make_data(ranks * (max(steps) + 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for step in range(max(steps) + 1):
        of_ranks = []
        for rank in range(ranks):
            inputs, wanted = batch_of(step * ranks + rank)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), wanted).backward()
            of_ranks.append([parameter.grad.clone() for parameter in network.parameters()])
        if step in steps:
            yield step, [numpy.stack([each.numpy().ravel() for each in tensors]) for tensors in zip(*of_ranks)]
        for parameter, *gradients in zip(network.parameters(), *of_ranks):
            parameter.grad = sum(gradients) / ranks
        optimizer.step()


def lowest_bit(values):
    """The exponent of the last bit that is not 0; of 0 a large number."""
    mantissa, exponent = numpy.frexp(values)
    whole = numpy.abs(mantissa * 2.0**24).astype(numpy.int64)
    return numpy.where(whole > 0, exponent - 24 + numpy.log2(numpy.maximum(whole & -whole, 1)), 9999)


def limbs(used, bits):
    """How many limbs cover the cells of a block that are used."""
    count, covered = 0, 0
    for cell in numpy.flatnonzero(used):
        start = max(covered, cell * CELL_BITS)
        needed = max(0, -(-((cell + 1) * CELL_BITS - start) // bits))
        count, covered = count + needed, start + needed * bits
    return count


def exact_lanes(blocks, bits):
    """Of each block of ranks x blocks x elements."""
    lowest, top = lowest_bit(blocks), numpy.frexp(blocks)[1] - 1
    used = numpy.zeros((blocks.shape[1], -(-VALUE_BITS // CELL_BITS) + 1), bool)
    first = numpy.where(lowest < 9999, (lowest - LEAST) // CELL_BITS, used.shape[1] - 1).astype(int)
    last = numpy.where(lowest < 9999, (top - LEAST) // CELL_BITS, used.shape[1] - 1).astype(int)
    which = numpy.broadcast_to(numpy.arange(blocks.shape[1])[None, :, None], blocks.shape)
    for further in range(24 // CELL_BITS + 1):
        used[which, numpy.minimum(first + further, last)] = True
    return [limbs(row[:-1], bits) for row in used]


def measure(tensors, ranks):
    log_ranks, count = (ranks - 1).bit_length(), collections.Counter()
    ring, exact = collections.Counter(), collections.Counter()
    for values in tensors:
        filled = numpy.pad(values.astype(numpy.float64), ((0, 0), (0, -values.shape[1] % BLOCK)))
        blocks = filled.reshape(ranks, -1, BLOCK)
        largest = numpy.abs(blocks).max(axis=(0, 2))
        above = numpy.where(largest >= FLUSHED, numpy.frexp(largest)[1], -99)  # 2^above is above all
        scaled = blocks * 2.0**(30 - log_ranks - above)[None, :, None]
        error = numpy.abs(numpy.rint(scaled) - scaled).sum(axis=0) * 2.0**(above - 30 + log_ranks)[:, None]
        size = numpy.abs(blocks).sum(axis=0)
        misses = error > size * 2.0**-9
        excess = numpy.where(error > 0, error / numpy.maximum(size * (ranks - 1) * 2.0**-24, 1e-300), 0).max(axis=1)
        bits = 31 - log_ranks
        ring.update((1 + numpy.ceil(numpy.log2(numpy.maximum(excess, 1)) / bits)).astype(int).tolist())
        exact.update(exact_lanes(blocks, bits))
        count.update(elements=values.shape[1], blocks=len(above), elements_missing=int(misses.sum()),
                     blocks_missing=int(misses.any(axis=1).sum()), equal=int((above[1:] == above[:-1]).sum()),
                     pairs=len(above) - 1)
    return count, ring, exact


def codes_of(tensors):
    """As if all tensors were one."""
    largest = numpy.abs(numpy.concatenate(tensors, axis=1)).max(axis=0)
    largest = numpy.pad(largest, (0, -len(largest) % BLOCK)).reshape(-1, BLOCK).max(axis=1)
    return numpy.where(largest >= FLUSHED, numpy.frexp(largest)[1], -99)


def print_again(make_network, make_data, ranks, steps):
    codes = {step: codes_of(tensors) for step, tensors in
             recorded(make_network, make_data, ranks, sorted({each for step in steps for each in (step, step + 1)}))}
    for step in steps:
        is_again = codes[step] == codes[step + 1]
        at = numpy.arange(len(is_again) * BLOCK // CHUNK) * CHUNK
        before = numpy.concatenate([[0], numpy.cumsum(~is_again)])
        is_whole = before[(at + CHUNK - 1) // BLOCK + 1] == before[at // BLOCK]
        operations = [is_again[i:i + OPERATION].all() for i in range(0, len(is_again), OPERATION)]
        print(f"{make_network.__name__}, step {step + 1}: codes of the step before: {100 * is_again.mean():.0f} % of blocks, "
              f"{100 * is_whole.mean():.0f} % of chunks, {100 * numpy.mean(operations):.0f} % of operations", flush=True)


def rounded_once(values):
    """The exact sums over ranks as float32: a double is that, unless it lies halfway between two."""
    doubles = numpy.array([math.fsum(each) for each in zip(*values.tolist())])
    result = doubles.astype(numpy.float32)
    halfway = numpy.flatnonzero((doubles.view(numpy.uint64) & 0x1fffffff) == 0x10000000)
    for i in halfway:
        exact = sum(fractions.Fraction(float(each)) for each in values[:, i])
        near = [result[i], numpy.nextafter(result[i], numpy.float32(-numpy.inf)),
                numpy.nextafter(result[i], numpy.float32(numpy.inf))]
        distances = [abs(fractions.Fraction(float(each)) - exact) for each in near]
        if distances.count(min(distances)) == 1:
            result[i] = near[distances.index(min(distances))]
    return doubles, result


def check(values, ours, exact):
    """(largest error over its bound in the default mode, elements, how many sums of exact mode are not the exact one)"""
    ranks, num_elems = values.shape
    doubles, once = rounded_once(values)
    blocks = numpy.pad(numpy.abs(values), ((0, 0), (0, -num_elems % BLOCK))).reshape(ranks, -1, BLOCK)
    largest = numpy.repeat(blocks.max(axis=(0, 2)).astype(numpy.float64), BLOCK)[:num_elems]
    bound = ranks * (1 << (ranks - 1).bit_length()) * 2.0**-30 * largest + 0.5 * numpy.spacing(numpy.abs(ours))
    bound += ranks * FLUSHED * (largest < FLUSHED)
    return (numpy.abs(ours.astype(numpy.float64) - doubles) / bound).max(), num_elems, int((exact != once).sum())


def check_all(sets, folder):
    """[largest error over its bound, elements, different sums in exact mode], of {name: tensors}, by the library."""
    tensors = [each for of_set in sets.values() for each in of_set]
    by_default, exactly = (iter(sums.by_library(tensors, folder, SWITCHML_EXACT=each)) for each in "01")
    found = []
    for name, of_set in sets.items():
        seen = [check(values, next(by_default), next(exactly)) for values in of_set]
        worst, count, different = max(each[0] for each in seen), sum(each[1] for each in seen), sum(each[2] for each in seen)
        print(f"{name}: default: largest error {worst:.3f} of its bound; exact mode: {count} sums, {different} differ from the "
              "exact ones", flush=True)
        found.append((worst, count, different))
    return found


def shares(counter, total):
    return ", ".join(f"{lanes}: {100 * number / total:.1f} %" for lanes, number in sorted(counter.items()))


def report(name, tensors, options):
    count, ring, exact = measure(tensors, options.ranks)
    blocks = count["blocks"]
    fields_per_lane = 32 // ((options.ranks - 1).bit_length() + 1)
    code_lanes = -(-(-(-VALUE_BITS // CELL_BITS) + 1) // fields_per_lane)
    lanes = sum(number * each for each, number in exact.items()) / blocks + code_lanes / BLOCK
    print(f"{name}, {blocks} blocks: default {count['elements_missing'] / count['elements']:.1e}"
          f" of elements, {100 * count['blocks_missing'] / blocks:.2f} % of blocks; ring {shares(ring, blocks)}; "
          f"exact {shares(exact, blocks)}, {lanes * FRAMING:.2f} bytes; equal {100 * count['equal'] / max(count['pairs'], 1):.0f} %", flush=True)
    return exact


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", default="0,1,3,10,20,40,70")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, checked, lanes = [int(step) for step in options.steps.split(",")], [], collections.Counter()
    with tempfile.TemporaryDirectory(prefix="switchml-gradients-") as folder:
        for name in options.networks.split(","):
            make_network, make_data = NETWORKS[name]
            if options.again:
                print_again(make_network, make_data, options.ranks, steps)
                continue
            sets = {}
            for step, tensors in recorded(make_network, make_data, options.ranks, steps):
                lanes.update(report(f"{name}, step {step}", tensors, options))
                sets[f"{name}, step {step}"] = tensors
                if options.save:
                    numpy.savez(os.path.join(options.save, f"{name}-{step}.npz"), *tensors)
            if options.check:
                checked += check_all(sets, folder)
    if options.again:
        return
    print(f"{len(steps) * len(options.networks.split(','))} sets; lanes of blocks in exact mode: {shares(lanes, sum(lanes.values()))}")
    if checked:
        worst, different = max(each[0] for each in checked), sum(each[2] for each in checked)
        print(f"{sum(each[1] for each in checked)} sums: default at most {worst:.3f} of its bound, {different} of exact mode differ")
        if worst > 1 or different:
            raise SystemExit("gradients: a bound does not hold, which is a bug")


if __name__ == "__main__":
    main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench/models/generate.py [--check]: writes the layer tables beside it, or compares them with what it would write.

Convolutional networks come from torchvision's modules (Debian: python3-torchvision 0.14; without it they are left as
they are), the others from the shapes in their publications. A line `layer NAME FLOPS PARAMETER=ELEMENTS...` is a
module with parameters, in forward order; FLOPS are those of one sample's forward pass (2 a multiply-add).
A line `speed GPU SAMPLES_PER_S WHY` is one GPU's rate of training: published, or derived from what is, by FLOPs.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

TENSORFLOW = "TensorFlow benchmarks, May 2017, DGX-1, synthetic data, 1 GPU"
LAMBDA = "lambdal/deeplearning-benchmark, pytorch-train-throughput-fp32.csv"
# Samples a second of one GPU that trains in float32 (A100 80GB SXM4: TensorFloat-32, the default there).
PUBLISHED = {
    "alexnet": {"p100": (2987, TENSORFLOW)},
    "vgg16": {"p100": (154, TENSORFLOW)},
    "inception_v3": {"p100": (142, TENSORFLOW)},
    "resnet50": {"p100": (219, TENSORFLOW), "v100": (369, LAMBDA), "a100": (1066, LAMBDA)},
    "bert_base": {"v100": (42, LAMBDA), "a100": (239, LAMBDA)},
    "ncf": {"v100": (9932793, LAMBDA), "a100": (28653595, LAMBDA)},
}
GPUS = ("p100", "v100", "a100")
# Whose rate the others are derived from: the same kind of arithmetic.
REFERENCE = {"vgg19": "vgg16", "resnet101": "resnet50", "googlenet": "inception_v3", "lstm": "bert_base", "dlrm": "ncf"}
BATCH = {"alexnet": 512, "bert_base": 24, "ncf": 131072, "dlrm": 2048}

TORCHVISION = {
    "alexnet": (61100840, 224, "Krizhevsky 2014, One weird trick"),
    "vgg16": (138357544, 224, "Simonyan and Zisserman 2015, configuration D"),
    "vgg19": (143667240, 224, "Simonyan and Zisserman 2015, configuration E"),
    "resnet50": (25557032, 224, "He et al. 2016"),
    "resnet101": (44549160, 224, "He et al. 2016"),
    "googlenet": (6624904, 224, "Szegedy et al. 2015, without the auxiliary classifiers"),
    "inception_v3": (27161264, 299, "Szegedy et al. 2016, with the auxiliary classifier"),
}


def linear(name, inputs, outputs, times=1, bias=True):
    tensors = [("weight", inputs * outputs)] + ([("bias", outputs)] if bias else [])
    return name, 2 * inputs * outputs * times, tensors


def norm(name, width, times=1):
    return name, 2 * width * times, [("weight", width), ("bias", width)]


def embedding(name, rows, width):
    return name, 0, [("weight", rows * width)]


def bert_base():
    """Devlin et al. 2019: 12 layers of 768, 30,522 word pieces, as published for uncased text; 384 positions."""
    width, steps = 768, 384
    layers = [embedding("embeddings.word_embeddings", 30522, width),
              embedding("embeddings.position_embeddings", 512, width),
              embedding("embeddings.token_type_embeddings", 2, width), norm("embeddings.LayerNorm", width, steps)]
    for i in range(12):
        head = f"encoder.layer.{i}."
        layers += [linear(head + "attention.self." + part, width, width, steps) for part in ("query", "key", "value")]
        name, flops, tensors = linear(head + "attention.output.dense", width, width, steps)
        layers += [(name, flops + 4 * steps * steps * width, tensors),  # scores and their sums beside the projection
                   norm(head + "attention.output.LayerNorm", width, steps),
                   linear(head + "intermediate.dense", width, 4 * width, steps),
                   linear(head + "output.dense", 4 * width, width, steps), norm(head + "output.LayerNorm", width, steps)]
    return layers + [linear("pooler.dense", width, width)]


def lstm():
    """Zaremba et al. 2014, the large model: 2 layers of 1500, 10,000 words, 35 steps (one bias a gate)."""
    width, words, steps = 1500, 10000, 35
    cells = [(f"rnn.{i}", 2 * 8 * width * width * steps,
              [("weight_ih", 4 * width * width), ("weight_hh", 4 * width * width), ("bias", 4 * width)]) for i in range(2)]
    return [embedding("encoder", words, width), *cells, linear("decoder", width, words, steps)]


def ncf():
    """He et al. 2017, NeuMF as in MLPerf: MovieLens-20M's 138,493 users and 26,744 items, 64 factors, 256-256-128-64."""
    users, items = 138493, 26744
    layers = [embedding("mf_user_embed", users, 64), embedding("mf_item_embed", items, 64),
              embedding("mlp_user_embed", users, 128), embedding("mlp_item_embed", items, 128)]
    for i, (inputs, outputs) in enumerate([(256, 256), (256, 128), (128, 64)]):
        layers.append(linear(f"mlp.{i}", inputs, outputs))
    return layers + [linear("final", 128, 1)]


CRITEO_ROWS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
               5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)


def dlrm():
    """Naumov et al. 2019: Criteo Kaggle's 26 tables of width 16, 13-512-256-64-16 and 367-512-256-1; gradients dense."""
    layers = [embedding(f"emb_l.{i}", rows, 16) for i, rows in enumerate(CRITEO_ROWS)]
    for part, widths in (("bot_l", (13, 512, 256, 64, 16)), ("top_l", (367, 512, 256, 1))):
        layers += [linear(f"{part}.{2 * i}", *pair) for i, pair in enumerate(zip(widths, widths[1:]))]
    return layers


# Totals as published: the papers' or the data sets' own sums, in millions.
WRITTEN = {"bert_base": (bert_base, 109482240, "110M"), "lstm": (lstm, 66022000, "66M"), "ncf": (ncf, 31832577, "31.8M"),
           "dlrm": (dlrm, 540677217, "540M")}


def from_torchvision(name):
    """Modules in the order in which they are registered, FLOPs as a forward pass has them."""
    import torch  # pylint: disable=import-outside-toplevel
    import torchvision  # pylint: disable=import-outside-toplevel
    more = {"googlenet": {"aux_logits": False, "init_weights": False}, "inception_v3": {"init_weights": False}}
    network = getattr(torchvision.models, name)(weights=None, **more.get(name, {}))
    flops, num_samples = {}, 2  # a batch norm wants more than one value

    def note(module, _inputs, output):
        if isinstance(module, torch.nn.Conv2d):
            each = 2 * module.in_channels // module.groups * module.kernel_size[0] * module.kernel_size[1]
        elif isinstance(module, torch.nn.Linear):
            each = 2 * module.in_features
        else:
            each = 2
        flops[module] = each * output.numel() // num_samples

    modules = [(path, module) for path, module in network.named_modules()
               if next(module.parameters(recurse=False), None) is not None]
    for _, module in modules:
        module.register_forward_hook(note)
    size = TORCHVISION[name][1]
    with torch.no_grad():
        network.train()(torch.zeros(num_samples, 3, size, size))
    return [(path, flops.get(module, 0), [(each, tensor.numel()) for each, tensor in module.named_parameters()])
            for path, module in modules]


def has_torchvision():
    try:
        import torchvision  # pylint: disable=import-outside-toplevel,unused-import
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def read(name):
    """{key: lines of words} of a table as it is on disk."""
    found = {}
    with open(os.path.join(HERE, name + ".txt"), encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                found.setdefault(words[0], []).append(words[1:])
    return found


def count(table):
    return sum(int(word.split("=")[1]) for line in table["layer"] for word in line[2:])


def flops_of(name, made):
    if name in made:
        return sum(layer[1] for layer in made[name])
    return sum(int(line[1]) for line in read(name)["layer"])


def speeds(name, made):
    lines = []
    for gpu in GPUS:
        if gpu in PUBLISHED.get(name, {}):
            rate, source = PUBLISHED[name][gpu]
            lines.append(f"speed {gpu} {rate} published: {source}")
            continue
        like = REFERENCE.get(name, name)
        source = gpu if gpu in PUBLISHED[like] else next(iter(PUBLISHED[like]))
        rate = PUBLISHED[like][source][0] * flops_of(like, made) / flops_of(name, made)
        how = f"derived by FLOPs from {like}'s" if like != name else "derived"
        if source != gpu:
            rate *= PUBLISHED["resnet50"][gpu][0] / PUBLISHED["resnet50"][source][0]
            how += f", from the {source}'s times what resnet50 gains between the two"
        lines.append(f"speed {gpu} {rate:.4g} {how}")
    return lines


def text_of(name, made):
    if name in TORCHVISION:
        total, size, paper = TORCHVISION[name]
        source = f"{paper}; torchvision 0.14's module, input 3 x {size} x {size}"
    else:
        function, total, published = WRITTEN[name]
        source = f"{function.__doc__.rstrip('.')}; {published} parameters as published"
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Written by bench/models/generate.py, which says what the lines mean.",
             f"source {source}", f"parameters {total}", f"batch {BATCH.get(name, 64)}", *speeds(name, made)]
    for path, flops, tensors in made[name]:
        line = " ".join([f"layer {path} {flops}", *(f"{tensor}={elements}" for tensor, elements in tensors)])
        lines.append(line)
    return "\n".join(lines) + "\n"


def main():
    made = {name: entry[0]() for name, entry in WRITTEN.items()}
    if has_torchvision():
        made.update({name: from_torchvision(name) for name in TORCHVISION})
    else:
        print("torchvision is not installed: its models were left as they are", file=sys.stderr)
    is_same = True
    for name in sorted(made):
        text, path = text_of(name, made), os.path.join(HERE, name + ".txt")
        if "--check" not in sys.argv[1:]:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                print(f"{name}.txt is not what is made of its source", file=sys.stderr)
                is_same = False
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench/models/generate.py [--check]: writes the layer tables beside it, or compares them with what it would write.

Convolutional networks come from torchvision's modules (Debian: python3-torchvision 0.14; without it they are left as
they are), the others from the shapes in their publications. A line `layer NAME FLOPS PARAMETER=ELEMENTS...` is a
module with parameters, in forward order; FLOPS are those of one sample's forward pass (2 a multiply-add).
A line `speed GPU SAMPLES_PER_S WHY` is one GPU's rate of training: published, or derived from what is, by FLOPs, or an estimate by peaks.
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
    "resnet50": {"p100": (219, TENSORFLOW), "v100": (369, LAMBDA), "a100": (1066, LAMBDA), "h100": (1753, LAMBDA),
                 "a10": (349, LAMBDA), "rtx4090": (721, LAMBDA)},
    "bert_base": {"v100": (42, LAMBDA), "a100": (239, LAMBDA), "h100": (408, LAMBDA), "a10": (70, LAMBDA),
                  "rtx4090": (137, LAMBDA)},
    "ncf": {"v100": (9932793, LAMBDA), "a100": (28653595, LAMBDA), "h100": (49094300, LAMBDA), "a10": (9069169, LAMBDA),
            "rtx4090": (17476573, LAMBDA)},
}
GPUS = ("p100", "v100", "a100", "h100", "a10", "l4", "rtx4090")
L4_OF_A10 = 60 / 62.5  # peaks of TensorFloat-32 in NVIDIA's data sheets; the L4's memory has half the bandwidth
# What is trained in 16 bit has no published rates of one GPU: they are estimates. samples/s = TFLOP/s / (3 x the FLOPs of a
# forward pass), since a backward pass takes twice as many. Meta had 400 TFLOP/s of an H100 in the training of Llama 3 405B on
# 16,384 of them (380 to 430: arXiv:2407.21783, table 4). Others are in proportion to the peaks in NVIDIA's data sheets (16
# bit, dense; RTX 4090: with sums in 32 bit).
LLAMA_3_TFLOPS = 400
PEAK_TFLOPS = {"p100": 21.2, "v100": 125, "a100": 312, "h100": 989, "a10": 125, "l4": 121, "rtx4090": 165}
IN_16_BIT = ("gpt2", "llama_1b", "llama_8b", "vit_b_16")
# Whose rate the others are derived from: the same kind of arithmetic.
REFERENCE = {"vgg19": "vgg16", "resnet101": "resnet50", "googlenet": "inception_v3", "lstm": "bert_base", "dlrm": "ncf"}
BATCH = {"alexnet": 512, "bert_base": 24, "ncf": 131072, "dlrm": 2048, "gpt2": 8, "llama_1b": 2, "llama_8b": 1}

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


def attention(name, flops, tensors, steps, width):
    """A projection, with the scores and their sums beside it."""
    return name, flops + 4 * steps * steps * width, tensors


def gpt2():
    """Radford et al. 2019, GPT-2 small: 12 layers of 768, 50,257 tokens, 1,024 positions; the output layer is the embedding."""
    width, steps, words = 768, 1024, 50257
    layers = [embedding("wte", words, width), embedding("wpe", 1024, width)]
    for i in range(12):
        head = f"h.{i}."
        layers += [norm(head + "ln_1", width, steps), linear(head + "attn.c_attn", width, 3 * width, steps),
                   attention(*linear(head + "attn.c_proj", width, width, steps), steps, width),
                   norm(head + "ln_2", width, steps), linear(head + "mlp.c_fc", width, 4 * width, steps),
                   linear(head + "mlp.c_proj", 4 * width, width, steps)]
    name, flops, tensors = norm("ln_f", width, steps)
    return layers + [(name, flops + 2 * width * words * steps, tensors)]


def vit_b_16():
    """Dosovitskiy et al. 2021, ViT-B/16: 12 layers of 768, 16 x 16 of 3 x 224 x 224, 1,000 classes"""
    width, steps = 768, 197
    layers = [linear("conv_proj", 3 * 16 * 16, width, 196), ("class_token", 0, [("weight", width)]),
              embedding("pos_embedding", steps, width)]
    for i in range(12):
        head = f"encoder.layers.{i}."
        layers += [norm(head + "ln_1", width, steps), linear(head + "self_attention.in_proj", width, 3 * width, steps),
                   attention(*linear(head + "self_attention.out_proj", width, width, steps), steps, width),
                   norm(head + "ln_2", width, steps), linear(head + "mlp.0", width, 4 * width, steps),
                   linear(head + "mlp.3", 4 * width, width, steps)]
    return layers + [norm("encoder.ln", width, steps), linear("heads.head", width, 1000)]


def llama(width, num_layers, kv_width, ffn_width, is_tied, steps=8192, words=128256):
    """Of Llama 3: no biases, grouped queries, three matrices in the feed-forward part, sequences of 8,192 tokens."""
    def plain(name, inputs, outputs):
        return linear(name, inputs, outputs, steps, bias=False)

    def rms(name):
        return name, 2 * width * steps, [("weight", width)]
    layers = [embedding("embed_tokens", words, width)]
    for i in range(num_layers):
        head = f"layers.{i}."
        layers += [rms(head + "input_layernorm"), plain(head + "self_attn.q_proj", width, width),
                   plain(head + "self_attn.k_proj", width, kv_width), plain(head + "self_attn.v_proj", width, kv_width),
                   attention(*plain(head + "self_attn.o_proj", width, width), steps, width), rms(head + "post_attention_layernorm"),
                   plain(head + "mlp.gate_proj", width, ffn_width), plain(head + "mlp.up_proj", width, ffn_width),
                   plain(head + "mlp.down_proj", ffn_width, width)]
    name, flops, tensors = rms("norm")
    head = plain("lm_head", width, words)
    return layers + ([(name, flops + head[1], tensors)] if is_tied else [(name, flops, tensors), head])


def llama_1b():
    """Meta 2024, config.json of meta-llama/Llama-3.2-1B: 16 layers of 2,048, 128,256 tokens; the output layer is the embedding."""
    return llama(2048, 16, 512, 8192, True)


def llama_8b():
    """Dubey et al. 2024 (arXiv:2407.21783, table 3), Llama 3 8B: 32 layers of 4,096, 128,256 tokens."""
    return llama(4096, 32, 1024, 14336, False)


# Totals as published: the papers' or the data sets' own sums, in millions.
WRITTEN = {"gpt2": (gpt2, 124439808, "124M"), "vit_b_16": (vit_b_16, 86567656, "86M"),
           "llama_1b": (llama_1b, 1235814400, "1.23B"), "llama_8b": (llama_8b, 8030261248, "8.0B"), "bert_base": (bert_base, 109482240, "110M"), "lstm": (lstm, 66022000, "66M"), "ncf": (ncf, 31832577, "31.8M"),
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
    for gpu in GPUS if name in IN_16_BIT else ():
        tflops = LLAMA_3_TFLOPS * PEAK_TFLOPS[gpu] / PEAK_TFLOPS["h100"]
        lines.append(f"speed {gpu} {tflops * 1e12 / (3 * flops_of(name, made)):.4g} estimate: {tflops:.0f} TFLOP/s in 16 bit / 3 forward "
                     f"passes, from {LLAMA_3_TFLOPS} of an H100 (arXiv:2407.21783, table 4) by NVIDIA's peaks")
    if lines:
        return lines
    for gpu in GPUS:
        if gpu == "l4":
            rate = float(lines[-1].split()[2]) * L4_OF_A10
            lines.append(f"speed {gpu} {rate:.4g} derived from the a10's by NVIDIA's peaks of TensorFloat-32; memory may slow it more")
            continue
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

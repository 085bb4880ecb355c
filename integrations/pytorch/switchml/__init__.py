# SPDX-License-Identifier: Apache-2.0
"""SwitchML for Python. `import switchml.torch` registers the torch.distributed backend `switchml`."""

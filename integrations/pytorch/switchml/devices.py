# SPDX-License-Identifier: Apache-2.0
"""Groups of several backends, one for each kind of device: "cpu:switchml,cuda:nccl".

Torch makes one backend after another, and stops at the first that is a process group of Python's. So a group of ours
makes the others itself, and hands them the calls on tensors of their devices.
"""
import sys

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import gloo


def _creation():
    """The local variables of torch's function that makes the group, or {}."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    return frame.f_locals if frame is not None else {}


def make_others(name, store, rank, size, timeout):
    """{kind of device: its backend} of the group that torch is making, without our own, which is called `name`."""
    creation, others, is_before = _creation(), {}, True
    config = creation.get("backend_config")
    for device, other in config.get_device_backend_map().items() if config is not None else ():
        if other == name:
            is_before = False
        elif is_before:  # torch has made it
            others[device] = creation["pg"]._get_backend(torch.device(device)), other
        else:
            others[device] = _make(other, _c10d.PrefixStore(f"{device}/", store), rank, size, timeout, creation), other
    return others


def _make(name, store, rank, size, timeout, creation):
    given = creation.get("backend_options", creation.get("pg_options"))
    if name == "gloo":
        backend = _c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    elif name == "nccl":
        if not dist.is_nccl_available():
            raise RuntimeError("Distributed package doesn't have NCCL built in")
        options = given if isinstance(given, dist.ProcessGroupNCCL.Options) else dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        for attribute, local in (("global_ranks_in_group", "global_ranks_in_group"), ("group_name", "group_name")):
            if hasattr(options, attribute):
                setattr(options, attribute, creation.get(local))
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
    elif name.upper() in dist.Backend._plugins:
        plugin = dist.Backend._plugins[name.upper()]
        if not plugin.extended_api:
            return plugin.creator_fn(store, rank, size, timeout)
        options = dist.distributed_c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
        options.group_id = creation.get("group_name")
        options.global_ranks_in_group = creation.get("global_ranks_in_group")
        return plugin.creator_fn(options, given)
    else:
        raise RuntimeError(f"switchml: the backend {name} beside switchml is not offered; gloo, nccl and plug-ins are")
    backend._set_sequence_number_for_group()
    return backend


def register(group, inner, others):
    """Torch 2 asks a group for its kinds of device, and for the backend of each."""
    kinds = dist.ProcessGroup.BackendType
    # Two devices whose backends are of one type have one backend to torch.
    kind = kinds.CUSTOM if any(name == "gloo" for _, name in others.values()) else kinds.GLOO
    group._register_backend(torch.device("cpu"), kind, inner)
    if torch.cuda.is_available() and "cuda" not in others:
        group._register_backend(torch.device("cuda"), kind, inner)
    for device, (backend, name) in others.items():
        group._register_backend(torch.device(device), dist.Backend.backend_type_map[name], backend)


def torchs_group(inner):
    """A group of torch's own: it has what Python does not see of a backend (in torch 2.6 the coalesced forms)."""
    group = dist.ProcessGroup(_c10d.HashStore(), inner.rank(), inner.size())
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, inner)
    return group


def dispatching(group_class, methods):
    """A class of groups that have other backends for some devices."""
    def pass_on(method):
        def call(self, *arguments, **keywords):
            given = [*arguments, *keywords.values()]
            device = next((value for value in given if isinstance(value, torch.device)), None)  # of a range
            tensor = next(gloo.tensors_in(given), None)
            device = device or (tensor.device if tensor is not None else None)
            backend, _ = self.others.get(device.type if device is not None else "", (None, None))
            if backend is not None:
                return getattr(backend, method)(*arguments, **keywords)
            return getattr(group_class, method)(self, *arguments, **keywords)
        call.__name__ = method
        return call
    return type("GroupOfDevices", (group_class,), {method: pass_on(method) for method in methods})

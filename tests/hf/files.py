"""Safetensors folders in plain Python: tensors are (dtype, shape, bytes)."""

import json
import os
import struct


def write_file(path, tensors, order=None):
    header, data = {}, b""
    for name in order or tensors:
        dtype, shape, raw = tensors[name]
        header[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_file(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    metadata = header.pop("__metadata__", None)
    tensors = {name: (t["dtype"], tuple(t["shape"]), raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
               for name, t in header.items()}
    return tensors, metadata


def write_folder(folder, tensors, shards=1):
    """Several shards are numbered from 0, as gpt-oss has them, and hold every shards-th tensor."""
    os.makedirs(folder)
    if shards == 1:
        write_file(f"{folder}/model.safetensors", tensors)
        return
    weight_map = {}
    for k in range(shards):
        name = f"model-{k:05d}-of-{shards - 1:05d}.safetensors"
        part = {t: tensors[t] for i, t in enumerate(tensors) if i % shards == k}
        write_file(f"{folder}/{name}", part)
        weight_map.update(dict.fromkeys(part, name))
    with open(f"{folder}/model.safetensors.index.json", "w") as f:
        json.dump(dict(metadata=dict(total_size=sum(len(t[2]) for t in tensors.values())), weight_map=weight_map), f)


def read_folder(folder, shard_bytes):
    """Also checks what a folder that we write must be."""
    index = f"{folder}/model.safetensors.index.json"
    if not os.path.exists(index):
        tensors, metadata = read_file(f"{folder}/model.safetensors")
        assert metadata == {"format": "pt"}, metadata
        return tensors
    with open(index) as f:
        index = json.load(f)
    tensors = {}
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{k + 1:05d}-of-{len(files):05d}.safetensors" for k in range(len(files))], files
    for name in files:
        part, metadata = read_file(f"{folder}/{name}")
        assert metadata == {"format": "pt"}, metadata
        assert len(part) == 1 or sum(len(t[2]) for t in part.values()) <= shard_bytes, name
        assert all(index["weight_map"][t] == name for t in part), name
        tensors.update(part)
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in tensors.values())
    return tensors

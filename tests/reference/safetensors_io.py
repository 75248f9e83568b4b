"""Reads and writes safetensors files: numpy and the standard library, nothing else.

A file is: u64 little-endian length of the header | header, JSON, padded with spaces so that the
data starts at a multiple of 8 | the tensors' bytes, little-endian, row-major, without gaps.

Tensors are written widest element first, otherwise in the order given, so every tensor lies
aligned to its own element and the same arguments always give the same bytes.
"""

import json
import math
import struct

import numpy as np

# numpy has no bfloat16: its 16 bits travel as a one-field record, so that BF16 and U16 stay apart.
BF16 = np.dtype([("bf16", "<u2")])

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BF16,
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def pack(tensors, metadata=None):
    """The bytes of a safetensors file. tensors: name -> array; metadata: str -> str."""
    header = {}
    if metadata:
        header["__metadata__"] = metadata
    chunks = []
    offset = 0
    for name in sorted(tensors, key=lambda name: -np.asarray(tensors[name]).dtype.itemsize):
        array = np.asarray(tensors[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        chunks.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(chunks)


def unpack(data):
    """(tensors, metadata) of a safetensors file's bytes. ValueError if header and data do not fit.

    The arrays are read-only views into data.
    """
    if len(data) < 8:
        raise ValueError("shorter than the header's length")
    (n_header,) = struct.unpack_from("<Q", data)
    if n_header > len(data) - 8:
        raise ValueError("header longer than the file")
    header = json.loads(bytes(data[8 : 8 + n_header]))
    metadata = header.pop("__metadata__", {})
    body = memoryview(data)[8 + n_header :]
    tensors = {}
    covered = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        if begin != covered or end - begin != math.prod(entry["shape"]) * dtype.itemsize:
            raise ValueError(f"{name}: offsets do not fit its shape and its neighbours")
        tensors[name] = np.frombuffer(body[begin:end], dtype).reshape(entry["shape"])
        covered = end
    if covered != len(body):
        raise ValueError("bytes after the last tensor")
    return tensors, metadata


def write(path, tensors, metadata=None):
    """Writes pack(tensors, metadata) to path."""
    with open(path, "wb") as file:
        file.write(pack(tensors, metadata))


def read(path):
    """(tensors, metadata) of the file at path."""
    with open(path, "rb") as file:
        return unpack(file.read())

"""TensorBoard's event files, scalars alone: no TensorFlow, no library that loads torch.

A file is a sequence of TFRecords; each holds an `Event` protocol buffer, of which the
fields below are written (tensorflow/core/util/event.proto, summary.proto).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""Wire types of protocol buffers."""
_START = 1
"""`SessionLog.START`: TensorBoard drops what other files hold from its step on."""


class EventFile:
    """An event file of one start of a run, written at once.

    Args:
      folder: made if it is missing; TensorBoard reads all event files in it as one run.
      start: steps that were done before.

    Raises:
      OSError: the folder or the file cannot be written; so do the methods.
    """

    def __init__(self, folder: Path, start: int):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._stream = open(folder / f"events.out.tfevents.{name}", "wb")  # noqa: SIM115
        status = _field(1, _VARINT, _varint(_START))
        self._write([_field(3, _BYTES, _sized(b"brain.Event:2"))])
        self._write([_step(start) + _field(7, _BYTES, _sized(status))])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step, an event for each."""
        self._write(
            _step(step) + _field(5, _BYTES, _sized(_scalar(*item)))
            for item in values.items()
        )

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def _write(self, events: Iterable[bytes]) -> None:
        clock = _field(1, _DOUBLE, struct.pack("<d", time.time()))
        self._stream.write(b"".join(_record(clock + event) for event in events))
        self._stream.flush()


def _record(data: bytes) -> bytes:
    """A TFRecord: length, its checksum, the data, theirs."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    """The checksum as TFRecords hold it: rotated, and moved by a constant."""
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """CRC-32C of the data (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_remainder(byte) for byte in range(256)]


def _step(step: int) -> bytes:
    return _field(2, _VARINT, _varint(step))


def _scalar(tag: str, value: float) -> bytes:
    """A `Summary` of one value."""
    number = _field(2, _FLOAT, np.array(value, "<f4").tobytes())
    return _field(1, _BYTES, _sized(_field(1, _BYTES, _sized(tag.encode())) + number))


def _field(number: int, wire: int, content: bytes) -> bytes:
    return bytes([number << 3 | wire]) + content


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; all but the last with the highest bit set."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])

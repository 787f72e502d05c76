"""The messages between server and clients; the only module that knows record keys.

The shared parameters travel as Flower's own strategies send them (records ``arrays``,
``config`` and ``metrics``, weight ``num-examples``), so clients of a method without
further payload also work under a plain Flower strategy. What a method sends beside them
goes in named groups of arrays (``arrays.teacher``) and named lists of numbers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.common import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType

from common.settings import is_experiment_name
from common.state import State

ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
NUM_EXAMPLES: Final = "num-examples"
TRAIN_LOSS: Final = "train-loss"
SERVER_ROUND: Final = "server-round"
STATE_ROUND: Final = "state-round"
"""Metric: the round of the personal state that a client went on from, 0 for none."""
TELEMETRY: Final = (
    "seconds",
    "cpu-seconds",
    "peak-memory-bytes",
    "gpu-peak-memory-bytes",
    "energy-joules",
    "temperature-celsius",
)
"""What a round cost the client's machine, as far as it can tell; numbers >= 0."""

LATENCY: Final = "latency"
"""Metric: median and 95th percentile of a sample's early-exit inference, in seconds."""
EPSILONS: Final = tuple(step / 20 for step in range(21))
"""Thresholds 0.00, 0.05, ..., 1.00 whose outcome every evaluation reports."""

Numbers = int | float | list[int] | list[float]
R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


class ProtocolError(ValueError):
    """A message lacks a part or has a part of another type."""


def refusal(reason: str) -> RecordDict:
    """Return the reply of a client that cannot take part, in place of its identity."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Reply to ``query``: who a node is."""

    client: str
    """Stable name; sampling, order of summation, logs and results go by it."""
    num_train: int
    """Training samples n_k."""
    num_test: int
    model: str
    """Name of the client's network."""
    macs: list[int]
    """Multiply-accumulates per sample up to each exit, earlier exits included."""
    device: str
    versions: str
    """Versions of Python, this app, Flower, PyTorch and NumPy, in one line."""

    def to_records(self) -> RecordDict:
        """Return the content of the message."""
        return RecordDict(
            {
                "identity": ConfigRecord(
                    {name: getattr(self, name) for name in self.__slots__}
                )
            }
        )

    @classmethod
    def from_records(cls, records: RecordDict) -> Identity:
        """Read the content of the message; raises :class:`ProtocolError`."""
        if "refusal" in records:
            reason = _record(records, "refusal", ConfigRecord).get("reason")
            raise ProtocolError(str(reason))
        record = _record(records, "identity", ConfigRecord)
        kinds = {"num_train": int, "num_test": int, "macs": list}
        values: dict[str, Any] = {}
        for name in cls.__slots__:
            value = record.get(name)
            if type(value) is not kinds.get(name, str):
                raise ProtocolError(f"identity: {name} = {value!r}")
            values[name] = value
        macs, name = values["macs"], values["client"]
        if not macs or not all(type(cost) is int and cost >= 0 for cost in macs):
            raise ProtocolError(f"identity: macs = {macs!r}")
        if not name or not name.isprintable():
            raise ProtocolError(f"identity: client = {name!r}")
        if min(values["num_train"], values["num_test"]) < 0:
            raise ProtocolError("identity: negative numbers of samples")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Message of type ``train`` or ``evaluate``."""

    experiment: str
    """Name of the experiment; personal states are kept under it."""
    run: str
    """Identifies the run, so that states of another are not taken for its own."""
    server_round: int
    """Round t, counted from 1."""
    checkpoint: int = 0
    """Last round the server can go back to; older personal states are not needed."""
    starts: Sequence[int] = ()
    """The round after which each start of the run began: 0, then one per resumption.
    What an earlier start did in later rounds is void."""
    shared: State
    """The shared parameters."""
    groups: Mapping[str, State] = field(default_factory=dict)
    """Further arrays of the method, e.g. X-FED's ``teacher``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further scalars and lists of the method, e.g. X-FED's ``students``."""

    def to_records(self, shared: ArrayRecord | None = None) -> RecordDict:
        """Return the content of the message.

        Parameters
        ----------
        shared
            The shared parameters as a record, where many messages carry the same.
        """
        config: dict[str, Any] = {
            "experiment": self.experiment,
            "run": self.run,
            SERVER_ROUND: self.server_round,
            "checkpoint": self.checkpoint,
            "starts": list(self.starts),
            **self.values,
        }
        records = RecordDict(
            {
                ARRAYS: to_record(self.shared) if shared is None else shared,
                CONFIG: ConfigRecord(config),
            }
        )
        for name, state in self.groups.items():
            records[f"{ARRAYS}.{name}"] = to_record(state)
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> Request:
        """Read the content of the message; raises :class:`ProtocolError`."""
        config = dict(_record(records, CONFIG, ConfigRecord))
        experiment, run = config.pop("experiment", ""), config.pop("run", "")
        server_round = config.pop(SERVER_ROUND, None)
        checkpoint = config.pop("checkpoint", 0)
        starts = config.pop("starts", [])
        if not (
            isinstance(experiment, str)
            and (experiment == "" or is_experiment_name(experiment))
            and isinstance(run, str)
            and type(server_round) is int
            and type(checkpoint) is int
            and isinstance(starts, list)
            and all(type(start) is int for start in starts)
        ):
            raise ProtocolError(
                f"experiment = {experiment!r}, run = {run!r}, "
                f"{SERVER_ROUND} = {server_round!r}, starts = {starts!r}"
            )
        return cls(
            experiment=experiment,
            run=run,
            server_round=server_round,
            checkpoint=checkpoint,
            starts=[int(start) for start in starts],
            shared=_arrays(records, ARRAYS),
            groups=_groups(records),
            values=config,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer to ``train`` or ``evaluate``."""

    metrics: Mapping[str, Numbers]
    """Always ``num-examples``: n_k of training, or the number of test samples."""
    shared: State | None = None
    """The trained shared parameters; None after evaluation."""
    groups: Mapping[str, State] = field(default_factory=dict)
    """Further arrays of the method, e.g. X-FED's ``exit``."""

    def to_records(self) -> RecordDict:
        """Return the content of the message."""
        records = RecordDict({METRICS: MetricRecord(dict(self.metrics))})
        if self.shared is not None:
            records[ARRAYS] = to_record(self.shared)
        for name, state in self.groups.items():
            records[f"{ARRAYS}.{name}"] = to_record(state)
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> Reply:
        """Read the content of the message; raises :class:`ProtocolError`."""
        return cls(
            metrics=dict(_record(records, METRICS, MetricRecord)),
            shared=_arrays(records, ARRAYS) if ARRAYS in records else None,
            groups=_groups(records),
        )


def to_record(state: State) -> ArrayRecord:
    """Convert named arrays to a Flower record."""
    return ArrayRecord({key: _encode(value) for key, value in state.items()})


def from_record(record: ArrayRecord) -> State:
    """Convert a Flower record to named arrays, read-only views of its bytes.

    Raises
    ------
    ProtocolError
        An array is not in NumPy's format, or its bytes are fewer or more than its
        header says.
    """
    return {key: _decode(key, array) for key, array in record.items()}


# NumPy writes and parses a header as Python source, equal ones again and again, so they
# are kept.


def _encode(value: npt.NDArray[np.generic]) -> Array:
    """Return what ``Array(value)`` is."""
    fortran_order = value.flags.f_contiguous and not value.flags.c_contiguous
    header = _write_header(value.dtype, value.shape, fortran_order)
    content = value.tobytes("F" if fortran_order else "C")
    return Array(str(value.dtype), value.shape, SType.NUMPY, header + content)


@lru_cache(maxsize=256)
def _write_header(
    dtype: np.dtype[np.generic], shape: tuple[int, ...], fortran_order: bool
) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": fortran_order,
            "shape": shape,
        },
    )
    return stream.getvalue()


def _decode(key: str, array: Array) -> npt.NDArray[np.generic]:
    size = 10 + int.from_bytes(array.data[8:10], "little")
    try:
        shape, fortran_order, dtype = _read_header(array.data[:size])
        flat = np.frombuffer(array.data, dtype, offset=size)
        return flat.reshape(shape, order="F" if fortran_order else "C")
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{key}: {error}") from error


@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("not of NumPy's format 1.0")
    return np.lib.format.read_array_header_1_0(stream)


def _record(records: RecordDict, name: str, kind: type[R]) -> R:
    record = records.get(name)
    if not isinstance(record, kind):
        raise ProtocolError(f"no {kind.__name__} {name!r}, only {sorted(records)}")
    return record


def _arrays(records: RecordDict, name: str) -> State:
    try:
        return from_record(_record(records, name, ArrayRecord))
    except ProtocolError as error:
        raise ProtocolError(f"{name}: {error}") from error


def _groups(records: RecordDict) -> dict[str, State]:
    prefix = f"{ARRAYS}."
    return {
        name.removeprefix(prefix): _arrays(records, name)
        for name in records
        if name.startswith(prefix)
    }

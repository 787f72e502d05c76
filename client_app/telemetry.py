"""What a round costs a device: time, memory, temperature and energy.

Energy is that of the whole board where the board measures it (the INA3221 power
monitors of NVIDIA Jetson boards, read through sysfs), else of the processor packages
(RAPL) and the NVIDIA GPU (NVML), as far as they can be read. A figure that a machine
does not have is left out.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch

_BOARD_RAILS = ("VDD_IN", "POM_5V_IN", "SYS_VIN_MV", "VIN")  # all of a board's power
_INTERVAL = 0.1  # seconds between two samples of power and temperature
_UNREADABLE = (OSError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Rail:
    """One supply rail of a board."""

    name: str
    watts: Callable[[], float]
    """Reads the present power, in watts."""


def power_rails(sysfs: Path) -> list[Rail]:
    """Return the rails whose sum is the board's power; none where it has no sensors.

    Reads the drivers ``ina3221`` (JetPack 5 and later: hwmon, millivolts and
    milliamperes) and ``ina3221x`` (JetPack 4: iio, milliwatts). Where a board measures
    its input, that rail alone is returned, since it feeds the others.

    Parameters
    ----------
    sysfs
        Where sysfs is mounted, ``/sys`` on every Linux.
    """
    rails = []
    drivers = sysfs / "bus/i2c/drivers"
    for label in sorted(drivers.glob("ina3221/*/hwmon/hwmon*/in*_label")):
        index = label.name[len("in") : -len("_label")]
        volts, amperes = (label.with_name(f"{k}{index}_input") for k in ("in", "curr"))
        name = label.read_text().strip()
        if volts.exists() and amperes.exists():  # the sum of shunt voltages has neither
            rails.append(Rail(name, _product(volts, amperes)))
    for label in sorted(drivers.glob("ina3221x/*/iio:device*/rail_name_*")):
        power = label.with_name(f"in_power{label.name.rsplit('_', 1)[1]}_input")
        if power.exists():
            rails.append(Rail(label.read_text().strip(), _milli(power)))
    return [r for r in rails if r.name in _BOARD_RAILS] or rails


def processor_energy(sysfs: Path) -> list[Callable[[], float]]:
    """Return readers of the processor packages' energy counters, in joules (RAPL)."""
    readers = []
    for zone in sorted((sysfs / "class/powercap").glob("*-rapl:*")):
        counter = zone / "energy_uj"
        if zone.name.count(":") == 1 and os.access(counter, os.R_OK):
            with suppress(*_UNREADABLE):
                limit = float((zone / "max_energy_range_uj").read_text())
                readers.append(_unwrapped(counter, limit))
    return readers


def gpu_energy(device: torch.device) -> list[Callable[[], float]]:
    """Return a reader of the GPU's energy counter, in joules (NVML), if there is one.

    Needs the package ``nvidia-ml-py`` and a GPU of the Volta generation or newer.
    """
    if device.type != "cuda":
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no package, no library, a board without NVML, a GPU too old
        return []

    def joules() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error

    return [joules]


def temperature(sysfs: Path) -> float | None:
    """Return the temperature of the hottest zone, in degrees Celsius, if known."""
    found = []
    for path in (sysfs / "class/thermal").glob("thermal_zone*/temp"):
        with suppress(OSError, ValueError):  # zones of parts that are switched off
            found.append(float(path.read_text()) / 1e3)
    return max(found, default=None)


@dataclass(slots=True)
class _Samples:
    """Power and temperature while a meter runs."""

    joules: float = 0.0
    hottest: float | None = None
    last: tuple[float, float] | None = None
    """Time in seconds and power in watts of the last sample."""


@dataclass(slots=True)
class Meter:
    """Measures what happens inside a ``with`` block; then :meth:`metrics` tells.

    Parameters
    ----------
    device
        Where training takes place.
    sysfs
        Where sysfs is mounted.
    """

    device: torch.device
    sysfs: Path = Path("/sys")
    _figures: dict[str, float] = field(default_factory=dict)
    _rails: list[Rail] = field(default_factory=list)
    _counters: list[tuple[Callable[[], float], float]] = field(default_factory=list)
    _samples: _Samples = field(default_factory=_Samples)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _start: tuple[float, float] = (0.0, 0.0)

    def __enter__(self) -> Meter:
        """Start to measure."""
        self._rails = power_rails(self.sysfs)
        if not self._rails:
            readers = [*processor_energy(self.sysfs), *gpu_energy(self.device)]
            with suppress(*_UNREADABLE):
                self._counters = [(reader, reader()) for reader in readers]
        _forget_peak()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._start = time.monotonic(), time.process_time()
        if self._rails or self._counters or temperature(self.sysfs) is not None:
            self._sample()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop to measure."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
            self._figures["gpu-peak-memory-bytes"] = float(peak)
        self._figures["seconds"] = time.monotonic() - self._start[0]
        self._figures["cpu-seconds"] = time.process_time() - self._start[1]
        self._figures["peak-memory-bytes"] = float(peak_memory())
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._sample()
        if self._samples.hottest is not None:
            self._figures["temperature-celsius"] = self._samples.hottest
        if self._rails and self._samples.last is not None:
            self._figures["energy-joules"] = self._samples.joules
        elif self._counters:
            with suppress(*_UNREADABLE):
                spent = [reader() - before for reader, before in self._counters]
                self._figures["energy-joules"] = sum(spent)

    def metrics(self) -> dict[str, float]:
        """Return the figures of the block, see :data:`common.protocol.TELEMETRY`."""
        return dict(self._figures)

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._sample()

    def _sample(self) -> None:
        """Take power and temperature; energy is the integral by trapezoids."""
        samples, celsius = self._samples, temperature(self.sysfs)
        if celsius is not None:
            samples.hottest = max(celsius, samples.hottest or celsius)
        with suppress(*_UNREADABLE):  # a sensor may be busy for a moment
            for reader, _ in self._counters:
                reader()  # so that no wrap of a counter is missed
        with suppress(*_UNREADABLE):
            now = time.monotonic(), sum(rail.watts() for rail in self._rails)
            if samples.last is not None:
                seconds = now[0] - samples.last[0]
                samples.joules += seconds * (now[1] + samples.last[1]) / 2
            samples.last = now


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _forget_peak() -> None:
    """Start the peak anew, since one process may run many clients."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _milli(path: Path) -> Callable[[], float]:
    return lambda: float(path.read_text()) / 1e3


def _product(millivolts: Path, milliamperes: Path) -> Callable[[], float]:
    return lambda: float(millivolts.read_text()) * float(milliamperes.read_text()) / 1e6


def _unwrapped(counter: Path, limit: float) -> Callable[[], float]:
    """Read a counter in microjoules that starts again at 0 after `limit`."""
    last, total = float(counter.read_text()), 0.0

    def joules() -> float:
        nonlocal last, total
        value = float(counter.read_text())
        total += value - last + (limit if value < last else 0.0)
        last = value
        return total / 1e6

    return joules

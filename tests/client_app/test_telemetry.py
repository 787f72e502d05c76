"""Telemetry from made-up boards: what is read where, and the energy by hand."""

from __future__ import annotations

import mmap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from client_app import telemetry
from client_app.telemetry import Meter, power_rails, processor_energy, temperature
from common.protocol import TELEMETRY

CPU = torch.device("cpu")


def write(folder: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    """Jetson Orin Nano, JetPack 6: 5,000 mV x 1,200 mA = 6 W at the input."""
    rails = tmp_path / "bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1"
    write(
        rails,
        {
            "in1_label": "VDD_IN",
            "in1_input": 5000,
            "curr1_input": 1200,
            "in2_label": "VDD_CPU_GPU_CV",
            "in2_input": 5000,
            "curr2_input": 400,
            "in7_label": "sum of shunt voltages",
            "in7_input": 0,
        },
    )
    zones = tmp_path / "class/thermal"
    write(zones / "thermal_zone0", {"type": "cpu-thermal", "temp": 48500})
    write(zones / "thermal_zone1", {"type": "gpu-thermal", "temp": 51000})
    write(zones / "thermal_zone2", {"type": "cv0-thermal", "temp": ""})
    return tmp_path


def test_input_rail_alone_counts(orin: Path) -> None:
    assert [(r.name, r.watts()) for r in power_rails(orin)] == [("VDD_IN", 6.0)]
    assert temperature(orin) == 51.0


def test_rails_add_up_where_the_input_is_not_measured(tmp_path: Path) -> None:
    # AGX Orin: two monitors, no rail for the whole board.
    monitors = tmp_path / "bus/i2c/drivers/ina3221"
    for address, rails in {
        "1-0040": {1: ("VDD_GPU_SOC", 2000), 2: ("VDD_CPU_CV", 1000)},
        "1-0041": {1: ("VDDQ_VDD2_1V8AO", 500)},
    }.items():
        for index, (name, current) in rails.items():
            write(
                monitors / address / "hwmon/hwmon3",
                {
                    f"in{index}_label": name,
                    f"in{index}_input": 1000,
                    f"curr{index}_input": current,
                },
            )
    assert {r.name: r.watts() for r in power_rails(tmp_path)} == {
        "VDD_GPU_SOC": 2.0,
        "VDD_CPU_CV": 1.0,
        "VDDQ_VDD2_1V8AO": 0.5,
    }


def test_classic_nano(tmp_path: Path) -> None:
    device = "bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    names = {"rail_name_0": "POM_5V_IN", "rail_name_1": "POM_5V_GPU"}
    powers = {"in_power0_input": 3210, "in_power1_input": 150}
    write(tmp_path / device, {**names, **powers})
    assert [(r.name, r.watts()) for r in power_rails(tmp_path)] == [("POM_5V_IN", 3.21)]


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float]) -> None:
    fake = types.SimpleNamespace(
        monotonic=lambda: next(seconds), process_time=lambda: 0.0
    )
    monkeypatch.setattr(telemetry, "time", fake)
    monkeypatch.setattr(telemetry, "_INTERVAL", 3600)  # only the first and last sample


def test_energy_is_the_integral_of_power(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, iter([10.0, 10.0, 14.0, 14.0]))
    with Meter(CPU, orin) as meter:
        current = orin / "bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1/curr1_input"
        current.write_text("2000\n")
        write(orin / "class/thermal/thermal_zone0", {"temp": 60000})
    metrics = meter.metrics()
    assert metrics["seconds"] == 4
    assert metrics["energy-joules"] == pytest.approx(4 * (6 + 10) / 2)
    assert metrics["temperature-celsius"] == 60.0


def test_processor_counters_and_their_wrap(tmp_path: Path) -> None:
    zone = tmp_path / "class/powercap/intel-rapl:0"
    write(zone, {"energy_uj": 900, "max_energy_range_uj": 1000})
    write(zone.with_name("intel-rapl:0:0"), {"energy_uj": 5})  # part of the package
    (reader,) = processor_energy(tmp_path)
    write(zone, {"energy_uj": 100})
    assert reader() == pytest.approx(200e-6)
    write(zone, {"energy_uj": 400})
    assert reader() == pytest.approx(500e-6)
    with Meter(CPU, tmp_path) as meter:
        write(zone, {"energy_uj": 700})
    assert meter.metrics()["energy-joules"] == pytest.approx(300e-6)


def test_a_machine_without_sensors(tmp_path: Path) -> None:
    with Meter(CPU, tmp_path) as meter:
        sum(i * i for i in range(100_000))
    metrics = meter.metrics()
    assert metrics.keys() == {"seconds", "cpu-seconds", "peak-memory-bytes"}
    assert metrics.keys() <= set(TELEMETRY)
    assert metrics["cpu-seconds"] > 0


def test_peak_memory_is_that_of_the_block(tmp_path: Path) -> None:
    size = 400 * 2**20
    with mmap.mmap(-1, size) as memory:  # goes back to the system, unlike a heap's
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
    with Meter(CPU, tmp_path) as small:
        pass
    with Meter(CPU, tmp_path) as large, mmap.mmap(-1, size) as memory:
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
    before, peak = (m.metrics()["peak-memory-bytes"] for m in (small, large))
    assert peak - before > 0.9 * size

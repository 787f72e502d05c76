"""The runner on two hand-made segments whose logits are known."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
pytest.importorskip("onnx", reason="needs the extra 'export'")

from client_app import onnx_runner
from client_app.onnx_runner import EarlyExitRunner

FACTORS = (1.0, -10.0)
# Images of one pixel with two channels; 255 becomes 1, 0 becomes -1. Exit 1 takes the
# channels for logits, exit 2 -10 times the channels, so it says the other class.
IMAGES = np.array(
    [[[[255, 0]]], [[[255, 255]]], [[[0, 255]]], [[[255, 102]]]], np.uint8
)
# Logits of exit 1: (1, -1), (1, 1), (-1, 1), (1, -0.2); confidences sigmoid of 2, 0, 2
# and 1.2.
SURE, HALF, LESS = (1 / (1 + math.exp(-x)) for x in (2.0, 0.0, 1.2))


def segment(path: Path, source: str, factor: float, logits: str, hidden: str) -> None:
    from onnx import TensorProto, helper, save

    shape = ["batch", 2, 1, 1]
    nodes = [
        helper.make_node("Flatten", [source], ["flat"]),
        helper.make_node("Mul", ["flat", "factor"], [logits]),
    ]
    outputs = [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["batch", 2])]
    if hidden:
        nodes.append(helper.make_node("Identity", [source], [hidden]))
        outputs.append(helper.make_tensor_value_info(hidden, TensorProto.FLOAT, shape))
    graph = helper.make_graph(
        nodes,
        "segment",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        outputs,
        [helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])],
    )
    opset = helper.make_opsetid("", 18)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments")
    segment(folder / "a.onnx", "input", FACTORS[0], "logits_1", "hidden_1")
    segment(folder / "b.onnx", "hidden_1", FACTORS[1], "logits_2", "")
    manifest = {
        "schema": 1,
        "input": {
            "kind": "image",
            "shape": [2, 1, 1],
            "scale": [2 / 255] * 2,
            "offset": [-1.0, -1.0],
        },
        "class_names": ["left", "right"],
        "confidence_threshold": 0.8,
        "macs": [3, 10],
        "segments": {"float32": ["a.onnx", "b.onnx"]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_by_hand(folder: Path, batch_size: int) -> None:
    runner = EarlyExitRunner(folder)
    result = runner.predict(IMAGES, batch_size=batch_size)
    # Samples 0 and 2 leave at once. Exit 2: (-10, -10) ties, (-10, 2) says class 1.
    assert result.labels.tolist() == [0, 0, 1, 1]
    assert result.exits.tolist() == [1, 2, 1, 2]
    assert result.macs.tolist() == [3, 10, 3, 10]
    expected = [SURE, HALF, SURE, 1 / (1 + math.exp(-12))]
    assert result.confidences == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("threshold", "exits"),
    [(0.0, [1, 1, 1, 1]), (LESS - 1e-5, [1, 2, 1, 1]), (1.0, [2, 2, 2, 2])],
)
def test_thresholds(folder: Path, threshold: float, exits: list[int]) -> None:
    assert EarlyExitRunner(folder).predict(IMAGES, threshold).exits.tolist() == exits


def test_no_samples(folder: Path) -> None:
    assert EarlyExitRunner(folder).predict(IMAGES[:0]).labels.shape == (0,)


def test_logits_of_every_exit(folder: Path) -> None:
    first, second = EarlyExitRunner(folder).logits(IMAGES)
    expected = np.array([[1, -1], [1, 1], [-1, 1], [1, -0.2]], np.float32)
    np.testing.assert_allclose(first, expected, atol=1e-6)
    np.testing.assert_allclose(second, -10 * expected, atol=1e-5)


def test_prepared_input_is_taken_as_it_is(folder: Path) -> None:
    prepared = np.array([[[[3.0]], [[1.0]]]], np.float32)
    assert EarlyExitRunner(folder).prepare(prepared) is prepared


@pytest.mark.parametrize(
    "samples",
    [IMAGES.astype(np.float64), IMAGES.transpose(0, 3, 1, 2), IMAGES[:, :, :, :1]],
)
def test_unfit_samples_are_refused(folder: Path, samples: onnx_runner.Array) -> None:
    with pytest.raises(ValueError, match=r"reads uint8 images \(N, 1, 1, 2\): resize"):
        EarlyExitRunner(folder).predict(samples)


def test_grey_images_and_tokens(folder: Path) -> None:
    runner = EarlyExitRunner(folder)
    runner.manifest["input"] = {
        "kind": "image",
        "shape": [1, 1, 2],
        "scale": [1.0],
        "offset": [-1.0],
    }
    grey = np.array([[[0, 9]]], np.uint8)  # N, height, width
    assert runner.prepare(grey).tolist() == [[[[-1.0, 8.0]]]]
    runner.manifest["input"] = {"kind": "text", "shape": [3]}
    tokens = runner.prepare(np.array([[5, 1, 0]], np.int32))
    assert tokens.dtype == np.int64
    with pytest.raises(ValueError, match="token ids of whole numbers"):
        runner.prepare(np.zeros((1, 4), np.int32))


def test_missing_segments_and_other_versions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no int8 segments, only float32.* --int8"):
        EarlyExitRunner(folder, precision="int8")
    (tmp_path / "manifest.json").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="has schema 2"):
        EarlyExitRunner(tmp_path)


def test_a_copy_runs_by_itself_without_torch(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "device")
    shutil.copy(onnx_runner.__file__, tmp_path / "device" / "onnx_runner.py")
    np.savez(tmp_path / "test.npz", images=IMAGES, labels=[0, 1, 1, 1])
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['flwr'] = None; "
        "sys.argv = ['onnx_runner.py', 'test.npz', '--batch-size', '3']; "
        "runpy.run_path('device/onnx_runner.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[:3] for line in lines] == [
        ["0", "0", "left"],
        ["1", "0", "left"],
        ["2", "1", "right"],
        ["3", "1", "right"],
    ]
    assert [line[4:] for line in lines] == [["1", "3"], ["2", "10"]] * 2
    assert "4 samples, accuracy 0.7500, 6 MACs each" in done.stderr


def test_wrong_files_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", pixels=IMAGES)
    with pytest.raises(SystemExit):
        onnx_runner.main([str(tmp_path / "x.npz"), "--model", str(folder)])
    assert "holds pixels: expected images or tokens" in capsys.readouterr().err

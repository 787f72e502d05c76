"""The page as a file, and as a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import made_up_runs
import pytest

from server_app.report.__main__ import main, report

needs_report = pytest.mark.skipif(
    find_spec("matplotlib") is None or find_spec("jinja2") is None,
    reason="needs the extra 'report': pip install '.[report]'",
)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """What a test asks of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.labels: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.links += [values[n] for n in ("src", "href", "xlink:href") if n in values]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "svg":
            self.labels.append(values["aria-label"])
        if tag == "tr":
            self.rows.append([])
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._open[-1:]
        if inside == ["h3"]:
            self.titles.append(data)
        elif {"td", "th"} & set(self._open[-2:]) and data.strip():
            self.rows[-1].append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, one of them still running, and a client with a network of one exit."""
    root = tmp_path_factory.mktemp("runs")
    reasons = {f"{EVIL}-3": "RuntimeError: <b>out of memory</b> & more"}
    hostile = {"names": EVIL + "-{}", "failures": reasons}
    made_up_runs.write(root / "xfed-0", rounds=4, dataset="cifar10", **hostile)
    made_up_runs.write(
        root / "xfed-1", rounds=4, dataset="cifar10", seed=1, shift=0.02, ended=""
    )
    made_up_runs.write(
        root / "alone", method="standalone", model="cnn-1", rounds=1, clients=1, exits=1
    )
    report([root])
    return root


@needs_report
def test_one_file_that_needs_nothing_else(folder: Path) -> None:
    html = (folder / "report" / "index.html").read_text()
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    inside = {f"#{name}" for name in page.ids}
    for link in page.links:
        assert link in inside or link.startswith("data:"), link
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= inside
    assert "@import" not in html


@needs_report
def test_every_figure_is_there_with_words_and_files(folder: Path) -> None:
    page = Page((folder / "report" / "index.html").read_text())
    compared = ["Accuracy over rounds", "Accuracy against cost, leaving early"]
    compared += ["Accuracy of each client"]
    of_xfed = [
        "Accuracy over rounds",
        "Accuracy of each client",
        "Accuracy against cost",
        "Cost of inference by round",
        "Students per exit",
        "Who teaches whom",
        "How much each client teaches itself",
        "Bytes down and up",
        "Duration of a round",
    ]
    alone = [of_xfed[i] for i in (0, 1, 4, 5, 7, 8)]
    assert page.titles == [*compared, *alone, *of_xfed, *of_xfed]
    assert len(page.labels) == len(page.titles)
    assert all(len(label) > 30 for label in page.labels)
    files = sorted((folder / "report" / "figures").iterdir())
    assert len(files) == 2 * len(page.titles)
    assert all(path.stat().st_size > 1000 for path in files)


@needs_report
def test_what_clients_say_is_text(folder: Path) -> None:
    html = (folder / "report" / "index.html").read_text()
    assert html.count("<script>") == 1  # the page's own
    assert "<b>" not in html
    row = next(row for row in Page(html).rows if "training" in row)
    assert row[:3] == [
        f"{EVIL}-3",
        "training",
        "RuntimeError: <b>out of memory</b> & more",
    ]


@needs_report
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt install chromium")
def test_in_a_browser(folder: Path, tmp_path: Path) -> None:
    """Loads without a complaint, fits a narrow window, and tables are sorted."""
    page = (folder / "report" / "index.html").read_text()
    probe = """<script>
    const buttons = [...document.querySelectorAll("th button")];
    buttons.filter((b) => b.textContent.startsWith("exit 1")).forEach((b) => b.click());
    buttons.filter((b) => b.textContent.startsWith("exit 1")).forEach((b) => b.click());
    const root = document.documentElement;
    const sizes = [...document.querySelectorAll("svg")].map((svg) => svg.getBBox());
    document.title = JSON.stringify({
      fits: root.scrollWidth <= root.clientWidth,
      drawn: sizes.filter((box) => box.width > 100 && box.height > 100).length,
    });
    </script>"""
    path = tmp_path / "probe.html"
    path.write_text(page.replace("</body>", f"{probe}</body>"))
    assert BROWSER is not None
    result = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=500,900",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "CONSOLE" not in result.stderr
    shown = Page(result.stdout)
    figures = len(shown.labels)
    title = re.search(r"<title>(.*?)</title>", result.stdout)
    assert title is not None
    assert title[1] == f'{{"fits":true,"drawn":{figures}}}'
    clients = [row[0] for row in shown.rows if len(row) > 7]
    order = [name for name in clients if name.startswith("client-")]
    # Accuracy rises with the number of the client; sorted twice, it falls.
    assert order == ["client-000", *(f"client-00{i}" for i in range(5, -1, -1))]


def test_the_command_line_says_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        ([], "name the folders of runs, or --latest"),
        (["nothing"], "nothing neither is a run nor holds one"),
        (["--latest"], "runs holds no run"),
    ):
        monkeypatch.setattr(sys, "argv", ["report", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert message in capsys.readouterr().err


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_runs.write(tmp_path / "a", rounds=1)
    monkeypatch.delitem(sys.modules, "server_app.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"needs jinja2: pip install '\.\[report\]'"):
        report([tmp_path / "a"])

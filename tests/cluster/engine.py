"""A Docker engine for the tests, and what the images are built from."""

from __future__ import annotations

import functools
import http.server
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "flower-personalized"
BASE_IMAGE = "python:3.11-slim-bookworm"
LOCAL_BASE = "flower-personalized/base:bookworm"


class Missing(Exception):
    """This machine lacks something; the message says what to do."""


def find_docker() -> str:
    """Return the first ``docker`` command that can build with BuildKit."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in dict.fromkeys([*folders, "/usr/bin"]):
        docker = str(Path(folder) / "docker")
        if not os.access(docker, os.X_OK):
            continue
        version = _output(docker, "--version")  # Docker version 20.10.24, build ...
        if int(version.split()[2].split(".")[0]) < 23 or _works(
            docker, "buildx", "version"
        ):
            return docker
    raise Missing(
        "there is no docker command with BuildKit: apt-get install docker.io "
        "docker-compose (Debian 12), or Docker's own packages with docker-buildx-plugin"
    )


@contextmanager
def running_engine(docker: str) -> Iterator[None]:
    """Use the engine that runs, or start one for the time of the tests.

    Its images stay for the next time. It has no bridge and changes no firewall rule.
    """
    if _works(docker, "info"):
        yield
        return
    dockerd = shutil.which("dockerd", path=f"{os.environ.get('PATH')}:/usr/sbin")
    if os.geteuid() != 0 or dockerd is None:
        raise Missing(
            "no Docker engine answers: start it (systemctl start docker) and let this "
            "user use it, or run this as root with package docker.io installed"
        )
    folder = CACHE / "test-cluster"
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [
        *(dockerd, "--data-root", folder / "data", "--exec-root", folder / "exec"),
        *("--pidfile", folder / "dockerd.pid", "--host", f"unix://{folder}/socket"),
        *("--bridge=none", "--iptables=false", "--ip-forward=false"),
    ]
    with (folder / "dockerd.log").open("wb") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    os.environ["DOCKER_HOST"] = f"unix://{folder}/socket"
    try:
        deadline = time.monotonic() + 60
        while not _works(docker, "info"):
            if engine.poll() is not None or time.monotonic() > deadline:
                text = (folder / "dockerd.log").read_text(errors="replace")
                raise Missing(f"dockerd does not start here; it said:\n{text[-2000:]}")
            time.sleep(0.5)
        yield
    finally:
        del os.environ["DOCKER_HOST"]
        engine.terminate()
        engine.wait(60)


def choose_base(docker: str) -> str:
    """Return the base image: the configured one, or one made here where it must be."""
    wanted = os.environ.get("BASE_IMAGE", BASE_IMAGE)
    if _works(docker, "image", "inspect", wanted) or _works(docker, "pull", wanted):
        return wanted
    if not _works(docker, "image", "inspect", LOCAL_BASE):
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            raise Missing(
                f"{wanted} cannot be pulled: set BASE_IMAGE to one that is here, or "
                "run this as root with package debootstrap installed, to make one"
            )
        script = REPOSITORY / "docker/make-base.sh"
        path = f"{Path(docker).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path}
        subprocess.run([script, LOCAL_BASE], check=True, env=env)
    return LOCAL_BASE


@contextmanager
def build_settings(folder: Path, base: str) -> Iterator[dict[str, str]]:
    """Yield the environment that ``docker/cluster`` builds the images with.

    This machine's certificate authorities (``PIP_CERT``) and wheels
    (``TEST_CLUSTER_WHEELS``) are there for the build alone. ``canary`` stands in every
    secret.
    """
    canary = f"canary-{secrets.token_hex(16)}"
    pip_conf = ["[global]", f"# {canary}", "timeout = 180"]
    build = ["--network", "host", "--secret", f"id=pip_conf,src={folder}/pip.conf"]
    if authorities := os.environ.get("PIP_CERT"):
        text = Path(authorities).read_text(encoding="utf-8")
        (folder / "ca.pem").write_text(f"{text}\n# {canary}\n", encoding="utf-8")
        pip_conf.append("cert = /run/pip-ca.pem")
        build += ["--secret", f"id=pip_ca,src={folder}/ca.pem"]
    with _served(os.environ.get("TEST_CLUSTER_WHEELS")) as address:
        if address:
            pip_conf.append(f"find-links = {address}")
        (folder / "pip.conf").write_text("\n".join(pip_conf), encoding="utf-8")
        yield {
            "BASE_IMAGE": base,
            "BUILD_ARGS": " ".join(build),
            "EXTRAS": "datasets",
            "IMAGE_TAG": "test",
            "canary": canary,
        }


@contextmanager
def _served(folder: str | None) -> Iterator[str | None]:
    if folder is None:
        yield None
        return

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout

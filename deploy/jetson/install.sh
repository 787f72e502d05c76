#!/bin/sh
# Installs what a SuperNode on a Jetson needs: a virtual environment with NVIDIA's build
# of PyTorch for its JetPack, and this app's base install in the tested versions.
#
#     ./deploy/jetson/install.sh [VENV]        default: ~/flower-personalized
#
# From a clone of the repository on the board; no root. TEGRA_RELEASE names another file
# than /etc/nv_tegra_release, DRY_RUN=1 only says what would be done.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
venv=${1:-$HOME/flower-personalized}
release_file=${TEGRA_RELEASE:-/etc/nv_tegra_release}

fail() {
    echo "$*" >&2
    exit 1
}

run() {
    echo "+ $*"
    [ -n "${DRY_RUN:-}" ] || "$@"
}

[ -r "$release_file" ] ||
    fail "$release_file is missing: this is no Jetson. Elsewhere: pip install ."
release=$(sed -n 's/^# R\([0-9][0-9]*\).*/\1/p' "$release_file")
case $release in
36 | 37) jetpack=6 ;;
3[89] | [4-9][0-9]) jetpack=7 ;;
32)
    fail "Jetson Linux R32 (JetPack 4) has CUDA 10.2 and Python 3.6, for which there is" \
        "no PyTorch 2.5: use docker/Dockerfile.jetson, which trains on the CPU."
    ;;
*)
    fail "Jetson Linux R${release:-?} is older than JetPack 6 (R36): upgrade JetPack, or" \
        "use docker/Dockerfile.jetson with JETPACK=4, which trains on the CPU."
    ;;
esac
python=$(command -v "${PYTHON:-python3}") || fail "python3 is missing"
"$python" -c 'import sys, ensurepip, venv
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
    fail "Python 3.10 to 3.12 with venv is needed: sudo apt-get install python3-venv"

echo "Jetson Linux R$release: JetPack $jetpack"
[ -x "$venv/bin/pip" ] || run "$python" -m venv "$venv"
run "$venv/bin/pip" install --disable-pip-version-check --no-deps \
    --requirement "$here/jetpack$jetpack.txt"
run "$venv/bin/pip" install --disable-pip-version-check \
    --constraint "$repository/deploy/ansible/roles/flower/files/constraints.txt" \
    "$repository"
run "$venv/bin/python" -c 'import torch
assert torch.cuda.is_available(), "PyTorch does not find the GPU"
print(torch.__version__, torch.cuda.get_device_name())'

# Advice; nothing below changes the board.
kib() {
    sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo
}
if [ "$(kib SwapTotal)" -lt "$(kib MemTotal)" ]; then
    echo "Swap: less than the memory. A swap file on NVMe keeps short peaks from ending a
client; zram alone takes from the same memory:
    sudo fallocate -l 8G /swapfile && sudo chmod 600 /swapfile &&
    sudo mkswap /swapfile && sudo swapon /swapfile
    echo '/swapfile none swap sw 0 0' | sudo tee -a /etc/fstab"
fi
if command -v nvpmodel >/dev/null; then
    echo "Power mode: $(nvpmodel -q 2>/dev/null | tr '\n' ' ')
    sudo nvpmodel -m 0     on most boards the highest; nvpmodel -p --verbose lists them"
fi
echo "Clocks: sudo jetson_clocks keeps them at the mode's highest until the next start."
if [ "$(systemctl get-default 2>/dev/null)" = graphical.target ]; then
    echo "Desktop: sudo systemctl set-default multi-user.target frees its memory."
fi

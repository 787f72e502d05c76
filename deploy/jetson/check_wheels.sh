#!/bin/sh
# Checks that a Jetson can install everything from wheels, without a Jetson: for each
# JetPack the base install is resolved for 64-bit ARM and its Python, in the tested
# versions (constraints.txt), from metadata alone. Needs uv (pip install uv) and python3.
# NVIDIA's index is left out: PyPI's wheels of the same versions of PyTorch stand in for
# those, unless INDEX=own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$here/../..
constraints=$repository/deploy/ansible/roles/flower/files/constraints.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v uv >/dev/null || {
    echo "uv is missing: pip install uv" >&2
    exit 2
}
python3 -m pip wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir "$work" "$repository"

for pair in 4:3.11 6:3.10 7:3.12; do
    jetpack=${pair%:*} python=${pair#*:}
    if [ "${INDEX:-pypi}" = own ]; then
        cp "$here/jetpack$jetpack.txt" "$work/requirements.in"
    else
        grep -v '^--' "$here/jetpack$jetpack.txt" >"$work/requirements.in"
    fi
    ls "$work"/*.whl >>"$work/requirements.in"
    # glibc 2.28 and later: Ubuntu 22.04 and 24.04, Debian 12.
    uv pip compile --quiet --no-header --no-annotate --only-binary :all: \
        --python-platform aarch64-manylinux_2_28 --python-version "$python" \
        --constraint "$constraints" --output-file "$work/resolved.txt" \
        "$work/requirements.in"
    if grep -Eq '^(ray|datasets)==' "$work/resolved.txt"; then
        echo "JetPack $jetpack: the base install brings Ray or datasets" >&2
        exit 1
    fi
    echo "JetPack $jetpack, Python $python: $(grep -c '==' "$work/resolved.txt")" \
        "packages, all as wheels for 64-bit ARM, $(grep '^torch==' "$work/resolved.txt")"
done

#!/bin/sh
# Make a base image from Debian's packages, for where no image registry is reachable:
#   docker/make-base.sh IMAGE [SUITE]
# Needs root and debootstrap. Then: make cluster BASE_IMAGE=IMAGE
set -eu

image=${1:?usage: docker/make-base.sh IMAGE [SUITE]}
suite=${2:-bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM

debootstrap --variant=minbase --include=ca-certificates,python3-venv \
    "$suite" "$root"
rm -rf "$root"/usr/share/doc "$root"/usr/share/info "$root"/usr/share/locale \
    "$root"/usr/share/man "$root"/var/cache/apt "$root"/var/lib/apt/lists \
    "$root"/var/log/*
tar --create --numeric-owner --directory "$root" --exclude ./dev --exclude ./proc \
    --exclude ./sys . | docker import - "$image"

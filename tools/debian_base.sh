#!/bin/sh
# Writes a base image's files as a tar: Debian 12 with its Python 3.11, by debootstrap, for machines that reach no
# registry. Needs root. The folder that it is made in goes away, whatever happens.
set -eu
tar=${1:?usage: tools/debian_base.sh TAR}

if ! command -v debootstrap >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "without a registry, debootstrap makes the base image: apt-get install debootstrap, and run this as root" >&2
    exit 1
fi

folder=$(mktemp -d /var/tmp/streamfleet-base.XXXXXX)
clean() {
    for mounted in proc sys dev; do
        umount --recursive "$folder/$mounted" 2>/dev/null || true
    done
    rm -rf --one-file-system "$folder"
}
trap clean EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$folder"

debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm "$folder"
# As in Python's official image: `python`, and a pip that installs for all.
ln -s python3 "$folder/usr/bin/python"
rm -f "$folder"/usr/lib/python3*/EXTERNALLY-MANAGED
# Of no use in an image.
rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/* "$folder"/var/log/*
rm -rf "$folder"/usr/share/doc/* "$folder"/usr/share/locale/* "$folder"/usr/share/man/*
tar --directory "$folder" --create --one-file-system --file "$tar" .

#!/usr/bin/env bash
# The image and what stands beside it in deploy/compose.yaml, without a registry: Debian's own Python, Redis, PostgreSQL
# and nginx are the bases. All is in FOLDER: what has a place there is made once, and gone with it. Root, podman and
# crun; netavark and aardvark-dns for the network.
#
#   unshare --mount --pid --fork --kill-child --mount-proc containers.sh build FOLDER CHECKOUT
#   unshare --mount --net --pid --fork --kill-child --mount-proc containers.sh hold FOLDER
#
# The second is a machine within this one, for `nsenter`: with its standard input it ends, and all that runs in it.
# BASE_TAR is the root of a file system that has all four; without one, mmdebstrap makes it.
set -euo pipefail
command=$1 folder=$2
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
names='debian redis:7 nginx:stable postgres:17'

settings() {
    mkdir -p "$folder/context" "$folder/tmp"
    cat >"$folder/containers.conf" <<END
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=8192:8192", "nproc=8192:8192"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[network]
network_backend = "netavark"
END
    printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/store"\nrunroot = "%s/run"\n' \
        "$folder" "$folder" >"$folder/storage.conf"
}

# crun refuses two kinds of control groups side by side; what podman keeps of the network is this machine's own.
seclude() {
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    mount -t tmpfs tmpfs /run
    mkdir -p /run/lock
}

root() {
    [ ! -s "$folder/context/base.tar" ] || return 0
    if [ -n "${BASE_TAR:-}" ]; then
        cp "$BASE_TAR" "$folder/context/base.tar"
        return
    fi
    mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --include=ca-certificates,python3-venv,redis-server,nginx-light,postgresql \
        trixie "$folder/context/base.tar"
}

build() {
    root
    cp "$here/peers.Dockerfile" "$folder/context/Dockerfile"
    for name in $names; do
        podman build --quiet --format docker --target "${name%:*}" -t "localhost/$name" "$folder/context"
    done
    local trusted=()
    for path in /etc/ssl/certs /etc/pip.conf; do
        [ ! -e "$path" ] || trusted+=(--volume "$path:$path:ro")
    done
    podman build --network host --pull=never --format docker "${trusted[@]}" \
        --build-arg BASE=localhost/debian -t localhost/turnkeeper "$1"
}

settings
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
export TMPDIR=$folder/tmp BUILDAH_ISOLATION=chroot
case $command in
build)
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    trap 'umount "$folder/store/overlay" 2>/dev/null || true' EXIT
    build "$3"
    ;;
hold)
    seclude
    ip link set lo up
    echo "$$"
    cat
    ;;
esac

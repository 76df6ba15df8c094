#!/bin/sh
# Makes a machine over this one and becomes its process 1; see machine.rs.
#
#   machine.sh mounts DIRECTORY FILES INIT...
#
# in a network and a mount namespace of its own. DIRECTORY is empty; FILES is seen
# by the machine as /tmp/files; INIT is its process 1. Writes "ready" to standard
# output when commands can be run in it.
set -eu

mounts() { # the layers, and a control group to be the root of the machine's
    layers=$1
    mount -t tmpfs layers "$layers"
    mkdir "$layers/upper" "$layers/work" "$layers/root" "$layers/cgroup"
    mount -t overlay overlay "$layers/root" \
        -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work"
    mount -t cgroup2 cgroup2 "$layers/cgroup"
    mkdir "$layers/cgroup/plimsoll-machine-$$"
    echo 0 >"$layers/cgroup/plimsoll-machine-$$/cgroup.procs"
    # --kill-child: the machine ends with this process.
    exec unshare --pid --cgroup --ipc --uts --fork --kill-child "$0" root "$@"
}

root() { # what a container's root has, and nothing of the machine below
    layers=$1 files=$2 root=$1/root
    shift 2
    mount -t proc proc "$root/proc"
    # What is not of this network namespace is the kernel's, thus everybody's.
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys"
    mount -t sysfs sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t bpf bpf "$root/sys/fs/bpf"
    mount -t tmpfs -o mode=755 run "$root/run"
    mount -t tmpfs -o mode=1777 tmp "$root/tmp"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts" "$root/tmp/files" "$root/run/layers" "$root/run/below"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    for device in null zero full random urandom tty; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mount --bind "$files" "$root/tmp/files"
    mount --bind "$layers" "$root/run/layers"
    cd "$root"
    pivot_root . run/below
    umount -l run/below
    rmdir run/below
    echo ready
    exec env -i container=plimsoll PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" >/dev/null 2>&1
}

forget() {
    mount -t cgroup2 cgroup2 "$2"
    # Its processes take a moment to end.
    for _ in $(seq 100); do
        find "$2/plimsoll-machine-$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.02
        [ -e "$2/plimsoll-machine-$1" ] || return 0
    done
    echo "control groups of a test's machine are left: plimsoll-machine-$1" >&2
}

"$@"

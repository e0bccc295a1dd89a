#!/usr/bin/env bash
# Installs what Venice needs on Debian (or a relative of it), and only what is missing.
#
#   scripts/setup.sh build   what the build needs
#   scripts/setup.sh demo    ... and what `venice demo` runs and measures
#   scripts/setup.sh test    ... and the programs of the test-suite (the default)
#   scripts/setup.sh check   ... and the tools of `make check`
#   scripts/setup.sh all     ... and those of `make test-all`
#
# Safe to call again: with everything there it only looks, which takes a few milliseconds.
# No service is left running or enabled.
set -euo pipefail

level="${1:-test}"
case "$level" in
    build | demo | test | check | all) ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: unknown level '$level': build, demo, test, check or all" >&2; exit 2 ;;
esac

export PATH="$HOME/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"
minimum_rust="1.89"
missing=()

at_least() { # at_least LEVEL: is the level asked for LEVEL or above?
    local order=" build demo test check all "
    local asked="${order%% "$level" *}" wanted="${order%% "$1" *}"
    ((${#asked} >= ${#wanted}))
}

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_file() { # need_file PATH PACKAGE
    [[ -e "$1" ]] || missing+=("$2")
}

look() {
    need make make
    need gcc gcc
    need_file /usr/include/stdio.h libc6-dev
    if at_least demo; then
        need redis-server redis-server
        need memcached memcached
        need mariadbd mariadb-server-core # the server alone: no service comes with it
        need_file /usr/include/db.h libdb5.3-dev # Berkeley DB, which `venice bench memory` compiles
        need ip iproute2
        # The peers that `venice demo` and `venice bench` measure beside Venice: swap on a file,
        # on zram, and on a FUSE file under a loop device.
        need mkswap util-linux
        need losetup mount
        need nbdkit nbdkit
        need nbdfuse libnbd-bin
        need fusermount3 fuse3
        # What `venice bench channels` measures beside Venice's channels.
        need fi_pingpong libfabric-bin
        need ucx_perftest ucx-utils
        need iperf3 iperf3
        need taskset util-linux
    fi
    if at_least test; then
        need redis-cli redis-tools
        need dpkg-shlibdeps dpkg-dev # builds the packages
        need etcd etcd-server # the store of several Monitor Nodes
        need etcdctl etcd-client
        need stress-ng stress-ng
        need sqlite3 sqlite3
        need gdb gdb # reads core dumps
        need strace strace
        need fzf fzf # a program in Go, which maps its memory past the C library
        need faketime faketime # clocks that jump
        need_file /usr/bin/python3 python3
        need_file /usr/lib/python3/dist-packages/numpy/__init__.py python3-numpy
        need_file /usr/lib/python3/dist-packages/pandas/__init__.py python3-pandas
        need_file /usr/lib/python3/dist-packages/mypy/__init__.py python3-mypy # type hints are checked
        need pgrep procps
        # OpenCL: the loader, a driver whose device is the processor, and a program.
        need_file /usr/lib/x86_64-linux-gnu/libOpenCL.so.1 ocl-icd-libopencl1
        need_file /etc/OpenCL/vendors/pocl.icd pocl-opencl-icd
        need_file /usr/include/CL/cl.h opencl-c-headers
        need_file /usr/lib/x86_64-linux-gnu/libOpenCL.so ocl-icd-opencl-dev
        need clinfo clinfo
        need_file /usr/lib/python3/dist-packages/pyopencl/__init__.py python3-pyopencl
        need pkg-config pkg-config # as whoever builds against the C library does
        need tshark tshark
        need systemd-analyze systemd # knows what the units allow
        # The guest of scripts/guest.sh, and what makes a soft RDMA device in it.
        need qemu-system-x86_64 qemu-system-x86
        need busybox busybox-static
        need xz xz-utils
        need zstd zstd
        need gpgv gpgv
        need ip iproute2
        need rdma iproute2
        need_file /usr/lib/x86_64-linux-gnu/libibverbs.so.1 libibverbs1
        need_file /usr/include/infiniband/verbs.h libibverbs-dev
        need_file /etc/libibverbs.d/rxe.driver ibverbs-providers
        # Any Java will do. The headless JDK brings `javac`, which makes the test shorter.
        command -v java >/dev/null 2>&1 || missing+=(default-jdk-headless)
    fi
    if at_least all; then
        # Open MPI, and what makes its bindings: experiments on ranks.
        need mpicc libopenmpi-dev
        need mpirun openmpi-bin
        [[ -n $(compgen -G "/usr/lib/llvm-*/lib/libclang.so") ]] || missing+=(libclang-dev)
        need g++ g++ # libFuzzer is C++
        need piglit piglit # tests of OpenCL
        need hashcat hashcat
        need clblast_test_xaxpy clblast-tests
        need clFFT-client clfft-client
        need clpeak clpeak
        need darktable-cli darktable
        # Large programs, which only `make test-all` runs.
        [[ -n $(compgen -G "/usr/lib/postgresql/*/bin/initdb") ]] || missing+=(postgresql)
        need chromium chromium
        need_file /usr/lib/chromium/chrome-sandbox chromium-sandbox
        need nginx nginx-light
        need node nodejs
        need_file /usr/lib/python3/dist-packages/pip/__init__.py python3-pip # fetches DuckDB
    fi
}

# Debian starts a freshly installed server at once. A policy that says no keeps it from that.
policy=/usr/sbin/policy-rc.d
policy_is_ours=
forbid_services() {
    [[ -e $policy ]] && return
    policy_is_ours=1
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}
allow_services() { [[ -z $policy_is_ours ]] || rm -f "$policy"; }

# Nor shall the ones installed here start with the machine. One that was there before is left alone.
disable_service() {
    local package service
    for package in "${missing[@]}"; do
        case "$package" in
            redis-server | memcached | iperf3 | postgresql) service="$package" ;;
            etcd-server) service=etcd ;;
            nginx-light) service=nginx ;;
            *) continue ;;
        esac
        if command -v systemctl >/dev/null 2>&1; then
            systemctl disable "$service.service" >/dev/null 2>&1 || true
        fi
        update-rc.d "$service" disable >/dev/null 2>&1 || true
    done
}

install_packages() {
    local list="${missing[*]}"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: missing: $list. This is no Debian: install their like by hand, then go on." >&2
        exit 1
    fi
    if [[ $(id -u) != 0 ]]; then
        echo "setup: missing: $list" >&2
        echo "setup: run as root, or once: sudo apt-get install --no-install-recommends $list" >&2
        exit 1
    fi
    echo "setup: installing $list"
    trap allow_services EXIT
    forbid_services
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    "${apt[@]}" update </dev/null
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
    disable_service
    allow_services
    trap - EXIT
}

check_rust() {
    if ! command -v cargo >/dev/null 2>&1; then
        echo "setup: no Rust here: install $minimum_rust or newer (https://rustup.rs), then go on." >&2
        exit 1
    fi
    local version
    version="$(rustc --version | cut -d' ' -f2)"
    if [[ "$(printf '%s\n%s\n' "$minimum_rust" "$version" | sort -V | head -n1)" != "$minimum_rust" ]]; then
        echo "setup: Rust $version is too old: Venice needs $minimum_rust or newer (rustup update)." >&2
        exit 1
    fi
}

check_rust_tools() {
    local component
    for component in rustfmt clippy; do
        command -v "cargo-${component/rustfmt/fmt}" >/dev/null 2>&1 && continue
        echo "setup: adding $component"
        rustup component add "$component"
    done
    build_tool cargo-deny
}

build_tool() { # build_tool CRATE
    command -v "$1" >/dev/null 2>&1 && return
    echo "setup: building $1 (a few minutes, once)"
    cargo install "$1" --locked --quiet </dev/null
}

# Debian has no package of DuckDB. Its wheel goes where the tests look for it.
duckdb="$(dirname "${BASH_SOURCE[0]}")/../target/duckdb"
duckdb_version=2.0.1
install_duckdb() {
    [[ -d $duckdb/duckdb-$duckdb_version.dist-info ]] && return
    echo "setup: fetching DuckDB $duckdb_version into target/duckdb"
    /usr/bin/python3 -m pip install --quiet --no-deps --root-user-action ignore --disable-pip-version-check --only-binary :all: \
        --upgrade --target "$duckdb" "duckdb==$duckdb_version" </dev/null
}

check_rust
look
if ((${#missing[@]})); then
    install_packages
fi
if at_least check; then
    check_rust_tools
fi
if at_least all; then
    install_duckdb
    build_tool cargo-fuzz
fi
# Half a minute and 200 MB once. Without them, what needs another kernel is skipped.
if at_least test; then
    for kernel in "" newer; do
        # shellcheck disable=SC2086
        "$(dirname "${BASH_SOURCE[0]}")/guest.sh" $kernel >/dev/null ||
            echo "setup: WARNING: no guest (see above): the tests that need its kernel will be skipped" >&2
    done
fi

#!/usr/bin/env bash
# Prepares the guest of the test-suite: Debian's kernel for QEMU, with the kernel features that the
# machine itself may lack (soft RoCE, nbd, bonding, netem, CXL, nvme-tcp ...). Nothing is installed:
# the package is fetched and unpacked into target/guest.
#
#   scripts/guest.sh          prepares what is missing, prints the folder of the guest
#   scripts/guest.sh shell    boots it with a shell on this terminal (Ctrl-A X ends it)
#   scripts/guest.sh newer [shell]    the same with a newer kernel (ublk that outlives its server)
#
# The folder holds `vmlinux`, `initrd`, `lib/modules/VERSION` and `version`. What runs in the guest
# sees this machine's own files, read from here and written to its memory only: a program built
# here runs there. crates/venice-testkit/src/guest drives it from tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="/usr/local/sbin:/usr/sbin:/sbin:$PATH"

base="$PWD/target/guest"
# Where the newer kernel comes from: Linux 6.13 is the least that is asked of it.
newer_suite=trixie-backports
which=kernel
if [[ ${1:-} == newer ]]; then
    which=kernel-newer
    shift
fi
folder="$base/$which"
# What nobody tests in a guest without hardware, and is most of the package.
unwanted=(drivers/gpu drivers/media drivers/net/wireless drivers/net/ethernet drivers/staging
    drivers/iio drivers/hwmon drivers/usb drivers/input drivers/hid drivers/isdn drivers/mfd
    drivers/leds drivers/power drivers/platform drivers/scsi drivers/infiniband/hw
    drivers/comedi drivers/bluetooth drivers/pinctrl drivers/regulator sound net/bluetooth
    net/mac80211 net/wireless)
# What the initrd itself needs, to reach the files of this machine.
first_modules=(virtio_pci virtio_console virtio_rng 9pnet_virtio 9p overlay)

fail() { echo "guest: $1" >&2; exit 1; }

prepare() {
    mkdir -p "$base"
    exec 9>"$base/$which.lock"
    flock 9
    local scripts_age
    scripts_age="$(cat scripts/guest.sh scripts/guest-init.sh | sha256sum | cut -d' ' -f1)"
    [[ -e $folder/ready && $(<"$folder/ready") == "$scripts_age" ]] && return
    local tool
    for tool in qemu-system-x86_64 busybox xz zstd apt-get dpkg-deb; do
        command -v "$tool" >/dev/null || fail "no $tool here: scripts/setup.sh test installs it"
    done
    ! ldd "$(command -v busybox)" >/dev/null 2>&1 || fail "busybox is not static: apt-get install busybox-static"
    rm -rf "$folder.new"
    mkdir -p "$folder.new"
    fetch_kernel "$folder.new"
    unpack_vmlinux "$folder.new"
    make_initrd "$folder.new"
    echo "$scripts_age" >"$folder.new/ready"
    rm -rf "$folder"
    mv "$folder.new" "$folder"
}

# The newest kernel that Debian has for this release: that of its backports, else its own. Or the newer
# one, of which there is no other.
fetch_kernel() { # fetch_kernel FOLDER
    local package version exclude=() path deb
    mkdir -p "$base/debs"
    if ! read_suite 2>"$base/$which.log" || ! package="$(newest_package)"; then
        [[ $which == kernel ]] || fail "no newer kernel: $(tail -n1 "$base/$which.log")"
        echo "guest: no backports ($(tail -n1 "$base/$which.log")): the kernel of the release itself" >&2
        apt_options=()
        package="$(newest_package)" || fail "apt knows no linux-image-amd64: apt-get update"
    fi
    version="${package#linux-image-}"
    for path in "${unwanted[@]}"; do exclude+=("--exclude=*/lib/modules/*/kernel/$path"); done
    # From Linux 7 on a kernel is in several packages.
    for package in "$package" "linux-base-$version" "linux-binary-$version" "linux-modules-$version"; do
        apt-cache "${apt_options[@]}" show "$package" >/dev/null 2>&1 || continue
        deb="$(fetched "$package")"
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$1" --exclude=./usr/share "${exclude[@]}"
    done
    if [[ -d $1/usr/lib/modules ]]; then
        mv "$1/usr/lib" "$1/lib"
        mkdir -p "$1/boot"
        mv "$1/lib/modules/$version/vmlinuz" "$1/boot/vmlinuz-$version"
    fi
    echo "$version" >"$1/version"
    find "$1/lib/modules" -name '*.ko.xz' -print0 | xargs -0 -r -P 2 -n 50 xz -d
    busybox depmod -b "$1" "$version"
}

# The file of a package, fetched once.
fetched() { # fetched PACKAGE
    local deb
    deb="$(find "$base/debs" -name "${1}_*.deb" | sort -V | tail -n1)"
    if [[ -z $deb ]]; then
        (cd "$base/debs" && apt-get -qq "${apt_options[@]}" -o Acquire::Retries=3 \
            -o APT::Sandbox::User=root download "$1" 2>"$base/$which.log") ||
            fail "cannot fetch $1: $(tail -n1 "$base/$which.log")"
        deb="$(find "$base/debs" -name "${1}_*.deb" | sort -V | tail -n1)"
    fi
    echo "$deb"
}

# Has apt read the index of the suite into a folder of ours, from the mirror in use here.
apt_options=()
read_suite() {
    local mirror codename suite lists="$base/$which.lists"
    codename="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
    suite="$codename-backports"
    [[ $which == kernel ]] || suite="$newer_suite"
    mirror="$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
        awk -v codename="$codename" '$2 == codename { print $1; exit }')"
    [[ -n $mirror ]] || { echo "apt has no $codename among its sources" >&2; return 1; }
    mkdir -p "$lists/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "$mirror $suite main" >"$base/$which.list"
    apt_options=(-o "Dir::Etc::sourcelist=$base/$which.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$lists" -o APT::Sandbox::User=root)
    # apt says no more than a warning when it cannot read an index.
    apt-get -qq "${apt_options[@]}" -o APT::Update::Error-Mode=any update
}

newest_package() {
    apt-cache "${apt_options[@]}" depends linux-image-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; found = 1; exit } END { exit !found }'
}

# The kernel as it is once it has unpacked itself, which takes QEMU many seconds and us one.
unpack_vmlinux() { # unpack_vmlinux FOLDER
    local image way at
    image="$(ls "$1"/boot/vmlinuz-*)"
    for way in '\x28\xB5\x2F\xFD zstd -dcq' '\xFD7zXZ\x00 xz -dcq --single-stream' '\x1F\x8B\x08 gzip -dcq'; do
        while read -r at; do
            # Bytes that follow the kernel are no error of ours.
            # shellcheck disable=SC2086
            tail -c "+$((at + 1))" "$image" | ${way#* } >"$1/vmlinux" 2>/dev/null || true
            [[ $(head -c 4 "$1/vmlinux" | tr -d '\0') == $'\x7fELF' ]] && { rm -r "$1/boot"; return; }
        done < <(LC_ALL=C grep -aobP "${way%% *}" "$image" | LC_ALL=C cut -d: -f1)
    done
    fail "no kernel that zstd, xz or gzip can unpack in $image"
}

make_initrd() { # make_initrd FOLDER
    local folder="$1" tree="$1/initrd.d" version module
    version="$(<"$folder/version")"
    mkdir -p "$tree"/{bin,proc,sys,dev,modules,lower,root,writable}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    for module in "${first_modules[@]}"; do with_dependencies "$module"; done |
        awk '!seen[$0]++' |
        while IFS= read -r module; do
            cp "$folder/lib/modules/$version/$module" "$tree/modules/"
            basename "$module" >>"$tree/modules/order"
        done
    install -m755 scripts/guest-init.sh "$tree/init"
    (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$folder/initrd"
    rm -r "$tree"
}

# Paths of a module and all it needs, the needed first (modules.dep lists them last).
with_dependencies() { # with_dependencies MODULE
    local dep="$folder/lib/modules/$version/modules.dep" line
    line="$(grep -E "(^|/)${1//[-_]/[-_]}\.ko(\.xz)?:" "$dep" || true)"
    [[ -n $line ]] || ! grep -qE "/${1//[-_]/[-_]}\.ko" "$folder/lib/modules/$version/modules.builtin" || return 0
    [[ -n $line ]] || fail "the kernel has no module $1"
    tr -s ': ' '\n' <<<"$line" | grep . | tac
}

prepare
case "${1:-}" in
    "") echo "$folder" ;;
    shell)
        exec qemu-system-x86_64 -M q35 -accel tcg -cpu max,la57=off -m 1024 -smp 1 -no-reboot \
            -nographic -kernel "$folder/vmlinux" -initrd "$folder/initrd" \
            -append "console=ttyS0 quiet mitigations=off no_timer_check guest.folder=$folder guest.shell" \
            -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
            -device virtio-9p-pci,fsdev=host,mount_tag=host
        ;;
    *) fail "'shell' or nothing, not '$1'" ;;
esac

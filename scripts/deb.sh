#!/usr/bin/env bash
# scripts/deb.sh [FOLDER]: Debian packages of what is built, into FOLDER (target/deb).
#
#   venice          the binary, the libraries it loads into programs, man pages, completions, documents
#   venice-server   units of the daemons, and their configuration in /etc/venice
#   libvenice0      the C library; libvenice-dev: what a build against it needs
#   python3-venice  the Python package
#
# BUILT is the folder of what is built (target/release; `make build`), DEB_REVISION is appended to the
# version, DEB_PACKAGES names some of them, DEB_MAINTAINER ("NAME <ADDRESS>") is who builds them, else
# the authors in Cargo.toml. Dependencies come from dpkg-shlibdeps. Control files and maintainer scripts:
# packaging/deb.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out="$(realpath -m -- "${1:-target/deb}")"
built="$(realpath -m -- "${BUILT:-target/release}")"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)${DEB_REVISION:-}"
maintainer="${DEB_MAINTAINER:-$(sed -n 's/^authors = \["\(.*\)"\]/\1/p' Cargo.toml)}"
for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v "$tool" >/dev/null || { echo "deb: no $tool: install dpkg-dev" >&2; exit 1; }
done
[[ -e $built/lib_venice.so ]] || { echo "deb: no $built/lib_venice.so: make build" >&2; exit 1; }
arch="$(dpkg --print-architecture)"
multiarch="$(dpkg-architecture -qDEB_HOST_MULTIARCH)"
# The same files from the same commit.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH

work="$(mktemp -d -t venice-deb.XXXXXX)"
trap 'rm -rf "$work"' EXIT
umask 022
mkdir -p "$out" "$work/debian"
sed "s|\${maintainer}|$maintainer|" packaging/deb/control >"$work/debian/control"
printf 'venice (%s) stable; urgency=low\n\n  * See /usr/share/doc/venice/CHANGELOG.md.\n\n -- %s  %s\n' "$version" \
    "$maintainer" "$(date -Ru -d "@$SOURCE_DATE_EPOCH")" >"$work/changelog"

# All files once, then each into its package.
all="$work/all"
DESTDIR="$all" BUILT="$built" scripts/install.sh install "$all/usr" >/dev/null
find "$all" -name .debug -prune -exec rm -rf {} +

give() { # give PACKAGE PATH...: moves files below /usr to a package
    local package="$1" path
    shift
    for path in "$@"; do
        mkdir -p "$work/$package/usr/$(dirname "$path")"
        mv "$all/usr/$path" "$work/$package/usr/$path"
    done
}

files_of_library() {
    mkdir -p "$all/usr/lib/$multiarch/pkgconfig"
    mv "$all"/usr/lib/libvenice.* "$all/usr/lib/$multiarch"
    sed 's|^libdir=.*|libdir=${prefix}/lib/'"$multiarch|" "$all/usr/lib/pkgconfig/venice.pc" \
        >"$all/usr/lib/$multiarch/pkgconfig/venice.pc"
    rm -r "$all/usr/lib/pkgconfig"
    local file
    for file in "$all/usr/lib/$multiarch"/libvenice.so.*; do give libvenice0 "lib/$multiarch/${file##*/}"; done
    give libvenice-dev "lib/$multiarch/libvenice.so" "lib/$multiarch/libvenice.a" \
        "lib/$multiarch/pkgconfig/venice.pc" include/venice.h
    mkdir -p "$work/libvenice0/DEBIAN"
    echo 'activate-noawait ldconfig' >"$work/libvenice0/DEBIAN/triggers"
    echo "libvenice ${version%%.*} libvenice0 (= $version)" >"$work/libvenice0/DEBIAN/shlibs"
}

files_of_server() {
    give venice-server lib/systemd
    local name
    for name in monitor agent; do
        install -Dm644 "packaging/examples/$name.toml" "$work/venice-server/etc/venice/$name.toml"
    done
    install -Dm644 packaging/examples/agent-service-hosts.conf \
        "$work/venice-server/usr/share/doc/venice-server/examples/agent-service-hosts.conf"
    mkdir -p "$work/venice-server/DEBIAN"
    printf '/etc/venice/%s.toml\n' agent monitor >"$work/venice-server/DEBIAN/conffiles"
}

files_of_python() {
    local site="$work/python3-venice/usr/lib/python3/dist-packages"
    mkdir -p "$site/venice-${version%%-*}.dist-info"
    cp -r crates/venice-py/python/venice "$site/venice"
    find "$site" -name __pycache__ -prune -exec rm -rf {} +
    install -m644 "$built/lib_venice.so" "$site/venice/_venice.abi3.so"
    strip --strip-unneeded "$site/venice/_venice.abi3.so"
    printf 'Metadata-Version: 2.1\nName: venice\nVersion: %s\nSummary: %s\nRequires-Python: >=3.11\n' \
        "${version%%-*}" "$(sed -n 's/^description = "\(.*\)"/\1/p' crates/venice-py/pyproject.toml)" \
        >"$site/venice-${version%%-*}.dist-info/METADATA"
    echo deb >"$site/venice-${version%%-*}.dist-info/INSTALLER"
}

# The fields of a package in packaging/deb/control, as those of a binary package.
control_of() { # control_of PACKAGE
    local root="$work/$1" depends="" libraries=()
    mapfile -t libraries < <(find "$root" -type f \( -name '*.so*' -o -path '*/bin/*' \))
    if ((${#libraries[@]})); then
        depends="$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info -l"$work/libvenice0/usr/lib/$multiarch" \
            "${libraries[@]}" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')"
        [[ -n $depends ]] || { echo "deb: dpkg-shlibdeps finds no dependencies of $1" >&2; return 1; }
    fi
    awk -v wanted="$1" -v RS= '$0 ~ "(^|\n)Package: " wanted "\n"' packaging/deb/control |
        sed "s|\${shlibs:Depends}|$depends|; s|\${version}|$version|; s|\${arch}|$arch|; /^Depends: *\$/d"
    echo "Maintainer: $maintainer"
    echo "Version: $version"
    echo "Installed-Size: $(du -k --apparent-size -s "$root" | cut -f1)"
}

package() { # package NAME
    local root="$work/$1" script
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
    install -m644 packaging/deb/copyright "$root/usr/share/doc/$1/copyright"
    gzip -9n <"$work/changelog" >"$root/usr/share/doc/$1/changelog.gz"
    control_of "$1" | sed '/^$/d' >"$root/DEBIAN/control"
    for script in preinst postinst prerm postrm; do
        [[ ! -e packaging/deb/$1.$script ]] || install -m755 "packaging/deb/$1.$script" "$root/DEBIAN/$script"
    done
    find "$root" -path "$root/DEBIAN" -prune -o -name '*.so*' -type f -exec chmod 644 {} +
    find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} + 2>/dev/null || true
    (cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 -r md5sum) >"$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$out/$1_${version}_$arch.deb" >/dev/null
    echo "$out/$1_${version}_$arch.deb"
}

files_of_library
files_of_server
files_of_python
# Debian's folder for completions of packages.
mkdir -p "$all/usr/share/zsh/vendor-completions"
mv "$all"/usr/share/zsh/site-functions/* "$all/usr/share/zsh/vendor-completions"
rmdir "$all/usr/share/zsh/site-functions"
# All the rest.
mkdir -p "$work/venice"
mv "$all/usr" "$work/venice/usr"
for name in ${DEB_PACKAGES:-libvenice0 libvenice-dev venice venice-server python3-venice}; do package "$name"; done

#!/usr/bin/env bash
# scripts/install.sh install|install-lab|uninstall PREFIX: the binary, its shim, the OpenCL client driver,
# the C library with header and pkg-config file, units, alert rules, the Grafana board, completions, man
# pages, documents; or the binary venice-lab with its own.
set -euo pipefail

usage() {
    echo "usage: scripts/install.sh install|install-lab|uninstall PREFIX" >&2
    exit 2
}

[[ $# == 2 && -n $2 ]] || usage
action="$1"
# Relative paths start where the caller is.
prefix="$(realpath -ms -- "$2")"
destdir="${DESTDIR:+$(realpath -ms -- "$DESTDIR")}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="${prefix#"${destdir%/}"}" # the prefix once a package is unpacked
built="${BUILT:-target/release}"
shells=(bash zsh fish)
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)"
completion_path() { # completion_path SHELL BINARY: where each shell looks
    case "$1" in
        bash) echo "$prefix/share/bash-completion/completions/$2" ;;
        zsh) echo "$prefix/share/zsh/site-functions/_$2" ;;
        fish) echo "$prefix/share/fish/vendor_completions.d/$2.fish" ;;
    esac
}

# A program or shared library, stripped; its symbols go to .debug beside it, where gdb and perf look.
install_stripped() { # install_stripped BUILT-NAME FILE
    local file="$prefix/$2" symbols
    symbols="$(dirname "$file")/.debug/$(basename "$file").debug"
    install -Dm755 "$built/$1" "$file"
    command -v objcopy >/dev/null || return 0
    install -d "$(dirname "$symbols")"
    objcopy --only-keep-debug "$built/$1" "$symbols"
    chmod 644 "$symbols"
    objcopy --strip-all --add-gnu-debuglink="$symbols" "$file"
}

# Completions and man pages come from the binary itself, so they always agree with it.
install_manual() { # install_manual BINARY
    local shell
    for shell in "${shells[@]}"; do
        install -d "$(dirname "$(completion_path "$shell" "$1")")"
        "$built/$1" completions "$shell" >"$(completion_path "$shell" "$1")"
    done
    install -d "$prefix/share/man/man1"
    "$built/$1" man --out "$prefix/share/man/man1" >/dev/null
}

install_lab() {
    install_stripped venice-lab bin/venice-lab
    install_manual venice-lab
    echo "installed under $prefix: try $prefix/bin/venice bench --help"
}

install_all() {
    install_stripped venice bin/venice
    install_stripped libvenice_preload.so lib/venice/libvenice_preload.so
    install_stripped libvenice_opencl.so lib/venice/libvenice_opencl.so
    install_stripped libvenice_cuda.so lib/venice/libvenice_cuda.so
    install_library
    local unit
    for unit in packaging/systemd/*.service; do
        [[ -e $unit ]] || continue
        install -d "$prefix/lib/systemd/system"
        # The units name the binary by its full path: the one it has once installed.
        sed "s|^\(Exec[A-Za-z]*=\)/[^ ]*/venice\b|\1$target/bin/venice|" "$unit" \
            >"$prefix/lib/systemd/system/$(basename "$unit")"
    done
    install -Dm644 packaging/sysusers.d/venice.conf "$prefix/lib/sysusers.d/venice.conf"
    install -Dm644 packaging/prometheus/venice.rules.yml "$prefix/share/venice/prometheus/venice.rules.yml"
    install -Dm644 packaging/grafana/venice.json "$prefix/share/venice/grafana/venice.json"
    install_manual venice
    if [[ -x $prefix/bin/venice-lab ]]; then
        # Its pages of its commands replace those of venice.
        "$prefix/bin/venice-lab" man --out "$prefix/share/man/man1" >/dev/null
    fi
    install_documents
    echo "installed under $prefix: try $prefix/bin/venice doctor"
}

# The documents and all that they link to, placed as in the clone.
install_documents() {
    local page
    {
        printf '%s\n' README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE-APACHE LICENSE-MIT
        find docs examples packaging -type f -not -path '*/__pycache__/*'
        grep -rhoE '\]\((\.\./)*crates/[^)#]+' --include='*.md' docs README.md | sed -E 's|.*\((\.\./)*||'
    } | sort -u | while IFS= read -r page; do
        install -Dm644 "$page" "$prefix/share/doc/venice/$page"
    done
}

install_library() {
    install_stripped libvenice.so "lib/libvenice.so.$version"
    ln -sf "libvenice.so.$version" "$prefix/lib/libvenice.so.${version%%.*}"
    ln -sf "libvenice.so.${version%%.*}" "$prefix/lib/libvenice.so"
    install -Dm644 "$built/libvenice.a" "$prefix/lib/libvenice.a"
    ! command -v objcopy >/dev/null || objcopy --strip-debug "$prefix/lib/libvenice.a"
    install -Dm644 crates/venice-c/include/venice.h "$prefix/include/venice.h"
    install -d "$prefix/lib/pkgconfig"
    sed "s|@PREFIX@|$target|; s|@VERSION@|$version|" crates/venice-c/venice.pc.in \
        >"$prefix/lib/pkgconfig/venice.pc"
}

uninstall_all() {
    local unit shell folder
    rm -f "$prefix/bin"/venice{,-lab} "$prefix/bin/.debug"/venice{,-lab}.debug
    rm -f "$prefix/lib/.debug"/libvenice.so.*.debug
    rm -f "$prefix/share/man/man1"/venice.1 "$prefix/share/man/man1"/venice-*.1
    rm -f "$prefix/lib/sysusers.d/venice.conf"
    rm -rf "$prefix/lib/venice" "$prefix/share/doc/venice" "$prefix/share/venice"
    rm -f "$prefix/lib"/libvenice.{a,so,so.*} "$prefix/include/venice.h" \
        "$prefix/lib/pkgconfig/venice.pc"
    for unit in packaging/systemd/*.service; do
        rm -f "$prefix/lib/systemd/system/$(basename "$unit")"
    done
    for shell in "${shells[@]}"; do
        rm -f "$(completion_path "$shell" venice)" "$(completion_path "$shell" venice-lab)"
    done
    # Folders that hold nothing else; bin, include, lib and share stay.
    for folder in bin/.debug lib/.debug lib/pkgconfig lib/sysusers.d lib/systemd{/system,} \
        share/bash-completion{/completions,} share/zsh{/site-functions,} \
        share/fish{/vendor_completions.d,} share/man/man1 share/doc; do
        [[ ! -d $prefix/$folder ]] || rmdir --ignore-fail-on-non-empty "$prefix/$folder"
    done
}

case "$action" in
    install) install_all ;;
    install-lab) install_lab ;;
    uninstall) uninstall_all ;;
    *) usage ;;
esac

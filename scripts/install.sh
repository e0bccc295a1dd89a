#!/usr/bin/env bash
# scripts/install.sh install|install-lab|uninstall PREFIX: the binary, its shim, the C library with header
# and pkg-config file, units, completions, man pages; or the binary venice-lab with its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

action="${1:?install or uninstall}"
prefix="${2:?a prefix}"
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

# The binary, stripped; its symbols go to a file beside it, where gdb and perf find them.
install_binary() { # install_binary NAME
    install -Dm755 "$built/$1" "$prefix/bin/$1"
    if command -v objcopy >/dev/null; then
        install -d "$prefix/lib/debug/bin"
        objcopy --only-keep-debug "$built/$1" "$prefix/lib/debug/bin/$1.debug"
        objcopy --strip-all --add-gnu-debuglink="$prefix/lib/debug/bin/$1.debug" "$prefix/bin/$1"
    fi
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
    install_binary venice-lab
    install_manual venice-lab
    echo "installed under $prefix: try $prefix/bin/venice bench --help"
}

install_all() {
    install_binary venice
    install -Dm755 "$built/libvenice_preload.so" "$prefix/lib/venice/libvenice_preload.so"
    install_library
    local unit page
    for unit in packaging/systemd/*.service; do
        [[ -e $unit ]] || continue
        install -d "$prefix/lib/systemd/system"
        # The units name the binary by its full path: the one it has once installed.
        sed "s|^\(Exec[A-Za-z]*=\)/[^ ]*/venice\b|\1${prefix#"${DESTDIR:-}"}/bin/venice|" "$unit" \
            >"$prefix/lib/systemd/system/$(basename "$unit")"
    done
    install -Dm644 packaging/sysusers.d/venice.conf "$prefix/lib/sysusers.d/venice.conf"
    install_manual venice
    for page in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT; do
        install -Dm644 "$page" "$prefix/share/doc/venice/$page"
    done
    for page in packaging/examples/*; do
        install -Dm644 "$page" "$prefix/share/doc/venice/examples/$(basename "$page")"
    done
    for page in examples/c/*; do
        install -Dm644 "$page" "$prefix/share/doc/venice/$page"
    done
    echo "installed under $prefix: try $prefix/bin/venice doctor"
}

install_library() {
    install -Dm755 "$built/libvenice.so" "$prefix/lib/libvenice.so.$version"
    ln -sf "libvenice.so.$version" "$prefix/lib/libvenice.so.${version%%.*}"
    ln -sf "libvenice.so.${version%%.*}" "$prefix/lib/libvenice.so"
    install -Dm644 "$built/libvenice.a" "$prefix/lib/libvenice.a"
    install -Dm644 crates/venice-c/include/venice.h "$prefix/include/venice.h"
    install -d "$prefix/lib/pkgconfig"
    sed "s|@PREFIX@|${prefix#"${DESTDIR:-}"}|; s|@VERSION@|$version|" crates/venice-c/venice.pc.in \
        >"$prefix/lib/pkgconfig/venice.pc"
}

uninstall_all() {
    local unit shell
    rm -f "$prefix/bin"/venice{,-lab} "$prefix/lib/debug/bin"/venice{,-lab}.debug
    rm -f "$prefix/share/man/man1"/venice.1 "$prefix/share/man/man1"/venice-*.1
    rm -f "$prefix/lib/sysusers.d/venice.conf"
    rm -rf "$prefix/lib/venice" "$prefix/share/doc/venice"
    rm -f "$prefix/lib"/libvenice.{a,so,so.*} "$prefix/include/venice.h" \
        "$prefix/lib/pkgconfig/venice.pc"
    for unit in packaging/systemd/*.service; do
        rm -f "$prefix/lib/systemd/system/$(basename "$unit")"
    done
    for shell in "${shells[@]}"; do
        rm -f "$(completion_path "$shell" venice)" "$(completion_path "$shell" venice-lab)"
    done
}

case "$action" in
    install) install_all ;;
    install-lab) install_lab ;;
    uninstall) uninstall_all ;;
    *) echo "install.sh: install, install-lab or uninstall, not '$action'" >&2; exit 2 ;;
esac

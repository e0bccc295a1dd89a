#!/usr/bin/env bash
# House rules that no compiler checks: see CONTRIBUTING.md and docs/internals/glossary.md.
#
#   scripts/tidy.sh            complains about each broken rule; exit code 1 if there is one
#   scripts/tidy.sh --stats    prints the counters behind the rules, a line for each crate
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

broken=0
complain() { echo "tidy: $1" >&2; broken=1; }

# Crates that map memory, take over or confine a process, call C, ask the kernel for what has no safe form, or
# prefetch.
may_be_unsafe=" venice-memory venice-ports venice-preload venice-accel venice-opencl venice-cuda venice-fake-cuda venice-service venice-swap venice-lab venice-measure venice-c venice-py venice-simkernel "
# The protocol: no clock, no thread, no socket, no order that changes from run to run.
sans_io="venice-wire venice-model venice-tcp venice-fabric venice-rack"
longest_file_lines=800
longest_readme_lines=200
most_bad_openers_percent=2
most_test_name_words=9
median_test_name_words=5

rust_files() { git ls-files --cached --others --exclude-standard "${1:-crates}/*.rs" | while IFS= read -r file; do [[ ! -e $file ]] || echo "$file"; done; }

# Doc-comment lines, those that open with a subjectless clause, tests, and the words of their names
# (median, most, names above the limit), of a crate.
words_of() { # words_of CRATE
    rust_files "crates/$1" | xargs -r awk -v most="$most_test_name_words" '
        /^[ \t]*\/\/[\/!]/ {
            doc++
            if ($0 ~ /^[ \t]*\/\/[\/!] +([-*] +)?(Who|What|Whether|How|Where|Why|As|So|Of|Such|Those|Nobody|Whose|Whom|Whoever|Whatever)[ ,]/) bad++
        }
        /^[ \t]*#\[(tokio::)?test/ { test = 1 }
        test && /^[ \t]*(async )?fn [a-z0-9_]+/ {
            name = $0; sub(/^[ \t]*(async )?fn /, "", name); sub(/[^a-z0-9_].*/, "", name)
            count = split(name, parts, "_"); of[count]++; tests++; test = 0
            if (count > largest) largest = count
            if (count > most) long++
        }
        END {
            for (count = 1; count <= largest && seen * 2 < tests; count++) { seen += of[count]; median = count }
            printf "%d %d %d %d %d %d\n", doc, bad, tests, median, largest, long
        }'
}

stats() {
    printf '%-18s %8s %8s %7s %7s %12s %12s\n' CRATE DOC-LINES OPENERS SHARE TESTS NAME-MEDIAN NAME-MOST
    local crate doc bad tests median most long all_doc=0 all_bad=0 all_tests=0
    for crate in crates/*/; do
        crate="$(basename "$crate")"
        read -r doc bad tests median most long < <(words_of "$crate")
        printf '%-18s %8d %8d %6.1f%% %7d %12d %12d\n' "$crate" "$doc" "$bad" \
            "$(awk "BEGIN { print 100 * $bad / ($doc + ($doc == 0)) }")" "$tests" "$median" "$most"
        all_doc=$((all_doc + doc)) all_bad=$((all_bad + bad)) all_tests=$((all_tests + tests))
    done
    printf '%-18s %8d %8d %6.1f%% %7d\n' all "$all_doc" "$all_bad" \
        "$(awk "BEGIN { print 100 * $all_bad / $all_doc }")" "$all_tests"
    echo
    echo "README.md: $(wc -l <README.md) lines, $(wc -c <README.md) bytes"
    rust_files | xargs wc -l | awk '$2 != "total" { print $1 }' | sort -n | awk '
        { lines[NR] = $1; sum += $1 }
        END { printf "Rust: %d files, %d lines; a file: median %d, 90th percentile %d, most %d\n", NR, sum, lines[int((NR + 1) / 2)], lines[int(NR * 0.9)], lines[NR] }'
    echo "test binaries: $(find crates/*/tests -maxdepth 1 -name '*.rs' 2>/dev/null | wc -l) files and $(find crates/*/tests -mindepth 2 -maxdepth 2 -name main.rs | wc -l) folders"
    echo "arms '_ =>' on a kind or a port: $(catch_all_arms | wc -l)"
    echo "retired words: $(retired_words | wc -l)"
}

# `crate floor` of each crate, from [workspace.metadata.floors].
floors() {
    awk '/^\[/ { in_floors = $0 == "[workspace.metadata.floors]"; next } in_floors && NF == 3 { print $1, $3 }' Cargo.toml
}

check_floors() {
    local -A floor
    local crate number dependency
    while read -r crate number; do floor[$crate]=$number; done < <(floors)
    for manifest in crates/*/Cargo.toml; do
        crate="$(basename "$(dirname "$manifest")")"
        [[ -n ${floor[$crate]:-} ]] || { complain "Cargo.toml: [workspace.metadata.floors] lacks $crate"; continue; }
        grep -qE "^\| ${floor[$crate]} \|.*\`$crate\`" docs/internals/architecture.md ||
            complain "docs/internals/architecture.md: no row '| ${floor[$crate]} | … \`$crate\`'"
        while IFS= read -r dependency; do
            ((${floor[$dependency]:-99} < ${floor[$crate]})) ||
                complain "$manifest: $crate (floor ${floor[$crate]}) imports $dependency (floor ${floor[$dependency]:-none})"
        done < <(awk '/^\[/ { in_deps = $0 == "[dependencies]" || $0 ~ /^\[target.*[^-]dependencies\]$/; next } in_deps && /^venice-/ { sub(/[ .=].*/, ""); print }' "$manifest")
    done
}

# Matches on a resource kind or a port that a new kind or port would fall through.
catch_all_arms() {
    rust_files | grep '/src/' | xargs awk '
        FNR == 1 { delete arms }
        {
            match($0, /^ */); indent = RLENGTH
            for (at in arms) if (indent < at + 0 && $0 !~ /^[ \t]*$/) delete arms[at]
        }
        /^ *(Some\()?\(?(ResourceKind|PortKind|LinkPort)::[A-Za-z]+.*(=>|\|)/ { arms[indent] = 1 }
        /^ *(Some\(\(?)?_(, [a-z_]+\)\))? (if .*)?=>/ && (indent in arms) { print FILENAME ":" FNR ": " $0 }'
}

# Words that the glossary retires for good (its rows marked T).
retired_words() {
    local pattern
    pattern="$(awk -F'|' '$4 ~ /^ *T *$/ { gsub(/\([^)]*\)/, "", $2); gsub(/^ +| +$/, "", $2); gsub(/ *, */, "|", $2); gsub(/ +/, "[ _]", $2); print $2 }' docs/internals/glossary.md | paste -sd'|')"
    git ls-files --cached --others --exclude-standard 'crates/*.rs' 'docs/*.md' 'scripts/*' README.md CONTRIBUTING.md |
        grep -vE '^docs/internals/glossary.md$|^scripts/tidy.sh$' | while IFS= read -r file; do [[ ! -e $file ]] || echo "$file"; done |
        xargs grep -nHiwE "$pattern" || true
}

if [[ ${1:-} == --stats ]]; then stats; exit; fi

for manifest in crates/*/Cargo.toml; do
    crate="$(basename "$(dirname "$manifest")")"
    root="crates/$crate/src/lib.rs"
    [[ -e $root ]] || root="crates/$crate/src/main.rs"
    if [[ $may_be_unsafe != *" $crate "* ]] && ! grep -q '^#!\[forbid(unsafe_code)\]' "$root"; then
        complain "$root: lacks #![forbid(unsafe_code)]"
    fi
    grep -q '^workspace = true' "$manifest" || complain "$manifest: lacks [lints] workspace = true"
    read -r doc bad tests median most long < <(words_of "$crate")
    ((bad * 100 <= doc * most_bad_openers_percent)) ||
        complain "crates/$crate: $bad of $doc doc-comment lines open with a subjectless clause (at most $most_bad_openers_percent %)"
    ((tests == 0 || median <= median_test_name_words)) ||
        complain "crates/$crate: the median test name has $median words (at most $median_test_name_words)"
    ((long == 0)) || complain "crates/$crate: $long test names have more than $most_test_name_words words"
done

for crate in $sans_io; do
    while IFS= read -r hit; do
        complain "$hit: the protocol does no I/O (docs/decisions/0001)"
    done < <(grep -rnE '^\s*(pub )?use (std::(net|thread|fs|time::(Instant|SystemTime))|tokio|rand)|Instant::now|SystemTime::now|thread::spawn' \
        "crates/$crate/src" --include='*.rs' || true)
done

check_floors
git apply --check docs/internals/adding-a-kind.diff 2>/dev/null ||
    complain "docs/internals/adding-a-kind.diff: does not apply: make it anew"
while IFS= read -r hit; do complain "$hit: name each kind and port"; done < <(catch_all_arms)
while IFS= read -r hit; do complain "$hit: a retired word (docs/internals/glossary.md)"; done < <(retired_words)

while IFS= read -r file; do
    lines="$(wc -l <"$file")"
    ((lines <= longest_file_lines)) || complain "$file: $lines lines: split it (at most $longest_file_lines)"
done < <(rust_files)
lines="$(wc -l <README.md)"
((lines <= longest_readme_lines)) || complain "README.md: $lines lines (at most $longest_readme_lines)"

exit "$broken"

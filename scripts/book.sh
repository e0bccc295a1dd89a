#!/usr/bin/env bash
# The book: checks the documents' links, and builds them with mdBook.
#
#   scripts/book.sh check   every relative link and every #anchor in *.md exists; needs only bash and awk
#   scripts/book.sh build   ... and builds the book into target/book (installs mdBook if it is missing)
#
# Both also check that docs/SUMMARY.md lists every page. The pages of docs/decisions are listed by
# the build, below their table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH" LC_ALL=C

# Pages that SUMMARY.md must list.
parts=(guide operations reference internals results)
staged=target/book-src
broken=0

complain() {
    echo "book: $1" >&2
    broken=$((broken + 1))
}

markdown_files() {
    # A file deleted in the working tree is still in the index.
    git ls-files --cached --others --exclude-standard '*.md' | while IFS= read -r file; do
        [[ ! -e $file ]] || echo "$file"
    done
}

# The awk functions that both the check and the build use.
functions='
function folder(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }
# Resolves TARGET as seen from FILE, relative to the root of the repository.
function resolve(file, target,    path, parts, count, kept, i, out) {
    path = target ~ /^\// ? substr(target, 2) : folder(file) "/" target
    count = split(path, parts, "/")
    kept = 0
    for (i = 1; i <= count; i++) {
        if (parts[i] == "" || parts[i] == ".") continue
        if (parts[i] == ".." && kept > 0 && stack[kept] != "..") { kept--; continue }
        stack[++kept] = parts[i]
    }
    out = ""
    for (i = 1; i <= kept; i++) out = out (i > 1 ? "/" : "") stack[i]
    return out == "" ? "." : out
}
function is_external(target) { return target ~ /^[A-Za-z][A-Za-z0-9+.-]*:/ }
'

# Prints `A file anchor` for each anchor and `L file line path anchor target` for each link, with
# tabs between the fields.
index_links() {
    local files=()
    mapfile -t files < <(markdown_files)
    awk "$functions"'
    function slug(text) {
        gsub(/\]\([^)]*\)/, "", text)
        # Signs that are neither letters nor digits: multiplication sign, dashes, ellipsis, arrow, dot.
        gsub(/\303\227|\342\200\223|\342\200\224|\342\200\246|\342\206\222|\302\267/, "", text)
        text = tolower(text)
        gsub(/[^a-z0-9_ \200-\377-]/, "", text)
        gsub(/ /, "-", text)
        return text
    }
    function anchor(name) { print "A\t" FILENAME "\t" name }
    function link(target,    at, path, fragment) {
        if (target == "" || is_external(target)) return
        at = index(target, "#")
        path = at ? substr(target, 1, at - 1) : target
        fragment = at ? substr(target, at + 1) : ""
        path = path == "" ? FILENAME : resolve(FILENAME, path)
        print "L\t" FILENAME "\t" FNR "\t" path "\t" (fragment == "" ? "-" : fragment) "\t" target
    }
    FNR == 1 { fence = "" }
    {
        line = $0
        if (fence != "") {
            if (line ~ "^ *" fence) fence = ""
            next
        }
        if (match(line, /^ *(```+|~~~+)/)) {
            fence = substr(line, RSTART, RLENGTH)
            gsub(/ /, "", fence)
            next
        }
        if (line ~ /^#+ /) {
            name = line
            sub(/^#+ +/, "", name)
            sub(/ *#* *$/, "", name)
            name = slug(name)
            times = seen[FILENAME, name]++
            anchor(times ? name "-" times : name)
        }
        gsub(/`[^`]*`/, "", line)
        rest = line
        while (match(rest, /\]\([^() \t]+( "[^"]*")?\)/)) {
            target = substr(rest, RSTART + 2, RLENGTH - 3)
            rest = substr(rest, RSTART + RLENGTH)
            sub(/ ".*$/, "", target)
            link(target)
        }
        if (match(line, /^\[[^]]+\]: +[^ ]+/)) {
            target = substr(line, RSTART, RLENGTH)
            sub(/^\[[^]]+\]: +/, "", target)
            link(target)
        }
        rest = line
        while (match(rest, /(src|srcset|href|id|name)="[^"]*"/)) {
            target = substr(rest, RSTART, RLENGTH)
            rest = substr(rest, RSTART + RLENGTH)
            key = target
            sub(/=.*/, "", key)
            sub(/^[^"]*"/, "", target)
            sub(/"$/, "", target)
            if (key == "id" || key == "name") anchor(target)
            else link(target)
        }
    }' "${files[@]}"
}

check_links() {
    local -A anchors=()
    local links=() kind file line path fragment target
    while IFS=$'\t' read -r kind file line path fragment target; do
        case $kind in
            A) anchors["$file#$line"]=1 ;;
            L) links+=("$file"$'\t'"$line"$'\t'"$path"$'\t'"$fragment"$'\t'"$target") ;;
        esac
    done < <(index_links)
    local link count=0
    for link in "${links[@]}"; do
        IFS=$'\t' read -r file line path fragment target <<<"$link"
        count=$((count + 1))
        if [[ ! -e $path ]]; then
            complain "$file:$line: $target: no such file: $path"
        elif [[ $fragment != - && $path == *.md && -z ${anchors["$path#$fragment"]:-} ]]; then
            complain "$file:$line: $target: no such heading in $path"
        fi
    done
    echo "book: $count links checked"
}

check_summary() {
    local page part
    for part in "${parts[@]}"; do
        for page in docs/"$part"/*.md; do
            [[ -e $page ]] || continue
            grep -qF "(${page#docs/})" docs/SUMMARY.md || complain "docs/SUMMARY.md: does not list $page"
        done
    done
}

check() {
    check_links
    check_summary
    ((broken == 0)) || {
        echo "book: $broken broken links or missing entries" >&2
        return 1
    }
}

need_mdbook() {
    command -v mdbook >/dev/null 2>&1 && return
    command -v cargo >/dev/null 2>&1 || {
        echo "book: mdbook is missing, and so is cargo: install Rust (https://rustup.rs), then try again" >&2
        return 1
    }
    echo "book: building mdbook (a few minutes, once)"
    cargo install mdbook --locked --quiet --no-default-features --features search </dev/null || {
        echo "book: cargo install mdbook failed: see above; try again, or install mdbook by hand" >&2
        return 1
    }
}

# Copies docs/ to $staged, lists every decision in its summary, and turns links to files outside
# docs/ into plain text: the book does not contain them.
stage() {
    rm -rf "$staged"
    mkdir -p "$staged"
    cp -R docs/. "$staged"
    local page title
    while IFS= read -r page; do
        awk "$functions"'
        /^ *(```|~~~)/ { fenced = !fenced }
        fenced { print; next }
        {
            out = ""
            rest = $0
            while (match(rest, /\[[^]]*\]\([^() \t]+\)/)) {
                whole = substr(rest, RSTART, RLENGTH)
                at = index(whole, "](")
                text = substr(whole, 2, at - 2)
                target = substr(whole, at + 2, length(whole) - at - 2)
                out = out substr(rest, 1, RSTART - 1)
                rest = substr(rest, RSTART + RLENGTH)
                leaves = !is_external(target) && target !~ /^#/ && resolve(page, target) !~ /^docs(\/|$)/
                out = out (leaves ? text : whole)
            }
            print out rest
        }' page="$page" "$page" >"$staged/${page#docs/}"
    done < <(find docs -name '*.md')
    {
        while IFS= read -r line; do
            printf '%s\n' "$line"
            [[ $line == *"(decisions/README.md)"* ]] || continue
            for page in docs/decisions/[0-9]*.md; do
                title="$(sed -n 's/^# //p' "$page" | head -n1)"
                # Brackets would end the entry.
                title="${title//[\[\]]/}"
                printf '  - [%s](%s)\n' "${title:-${page##*/}}" "${page#docs/}"
            done
        done <docs/SUMMARY.md
    } >"$staged/SUMMARY.md"
}

build() {
    check
    need_mdbook
    stage
    MDBOOK_BOOK__SRC="$staged" mdbook build
    echo "book: target/book/index.html"
}

case "${1:-build}" in
    check) check ;;
    build) build ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
    *)
        echo "book: unknown command '$1': check or build" >&2
        exit 2
        ;;
esac

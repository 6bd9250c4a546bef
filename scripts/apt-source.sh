#!/bin/sh
# Prints the apt source (deb822) that gives this machine the OpenZFS library, derived from the sources it already
# has: same archive, same keyring. Prints nothing if they give it already.
#
#   apt-source.sh APT_DIR CODENAME COMPONENT [BACKPORTS]
#   apt-source.sh APT_DIR CODENAME COMPONENT --only "SUITE …"
#
# APT_DIR     as /etc/apt; read: sources.list, sources.list.d/*.list, sources.list.d/*.sources, except ztune.sources
# CODENAME    of the distribution, as bookworm
# COMPONENT   where the library is: contrib on Debian, universe on Ubuntu
# BACKPORTS   a suite to add too, as bookworm-backports
# --only      these suites of the same archive and nothing else, whatever the machine has of them
#
# Exit code 3 if no source of the distribution is found.
set -eu

[ $# -ge 3 ] || { echo "usage: apt-source.sh APT_DIR CODENAME COMPONENT [BACKPORTS | --only SUITES]" >&2; exit 2; }
apt_dir=$1 codename=$2 component=$3 backports=${4:-} only=""
if [ "$backports" = --only ]; then only=$5 backports=""; fi
tab=$(printf '\t')

# Every source as one line: URI, suite, components, Signed-By, Architectures, Trusted; tabs between,
# line ends of a key that stands in the file itself as \001.
deb822() {
    awk -v OFS='\t' '
        function clear() { split("", field); name = "" }
        function flush(   uris, suites, i, j, n, m) {
            if ((" " field["types"] " ") ~ / deb / && tolower(field["enabled"]) !~ /^(no|false|off|0)$/) {
                n = split(field["uris"], uris, " "); m = split(field["suites"], suites, " ")
                for (i = 1; i <= n; i++) for (j = 1; j <= m; j++)
                    print uris[i], suites[j], field["components"], field["signed-by"], \
                        field["architectures"], field["trusted"]
            }
            clear()
        }
        BEGIN { clear() }
        { sub(/\r$/, "") }
        /^#/ { next }
        /^[ \t]*$/ { flush(); next }
        /^[ \t]/ {
            if (name == "signed-by") field[name] = field[name] "\001" $0
            else { gsub(/\t/, " "); field[name] = field[name] " " $0 }
            next
        }
        {
            colon = index($0, ":"); name = tolower(substr($0, 1, colon - 1)); value = substr($0, colon + 1)
            gsub(/\t/, " ", value); sub(/^ +/, "", value); sub(/ +$/, "", value); field[name] = value
        }
        END { flush() }
    ' "$1"
}
one_line() {
    awk -v OFS='\t' '
        { sub(/\r$/, ""); sub(/#.*/, "") }
        $1 != "deb" { next }
        {
            signed = arch = trusted = ""
            line = $0; sub(/^[ \t]*deb[ \t]+/, "", line)
            if (line ~ /^\[/) {
                options = substr(line, 2, index(line, "]") - 2); line = substr(line, index(line, "]") + 1)
                n = split(options, option, /[ \t]+/)
                for (i = 1; i <= n; i++) {
                    equals = index(option[i], "="); key = tolower(substr(option[i], 1, equals - 1))
                    value = substr(option[i], equals + 1); gsub(/,/, " ", value)
                    if (key == "signed-by") signed = value
                    if (key == "arch") arch = value
                    if (key == "trusted") trusted = value
                }
            }
            n = split(line, part, /[ \t]+/); first = (part[1] == "") ? 2 : 1
            components = ""
            for (i = first + 2; i <= n; i++) if (part[i] != "") components = components (components == "" ? "" : " ") part[i]
            print part[first], part[first + 1], components, signed, arch, trusted
        }
    ' "$1"
}
sources=$(
    for file in "$apt_dir"/sources.list.d/*.sources; do
        if [ -f "$file" ] && [ "${file##*/}" != ztune.sources ]; then deb822 "$file"; fi
    done
    for file in "$apt_dir/sources.list" "$apt_dir"/sources.list.d/*.list; do
        if [ -f "$file" ]; then one_line "$file"; fi
    done
)

printf '%s\n' "$sources" | awk -F "$tab" -v codename="$codename" -v component="$component" -v backports="$backports" -v only="$only" '
    function has(list, word) { return index(" " list " ", " " word " ") > 0 }
    $1 ~ /^cdrom:/ { next }
    # The archive is where the release itself comes from; its updates may come from the same place.
    $2 == codename && has($3, "main") && uri == "" { uri = $1; signed = $4; arch = $5; trusted = $6 }
    $2 == codename && has($3, component) { have = 1 }
    $2 == codename "-updates" { update_uri[$1] = 1 }
    backports != "" && $2 == backports && has($3, component) { have_backports = 1 }
    function stanza(suites, components) {
        if (printed++) print ""
        print "Types: deb"; print "URIs: " uri; print "Suites: " suites; print "Components: " components
        if (arch != "") print "Architectures: " arch
        if (trusted != "") print "Trusted: " trusted
        if (signed != "") { gsub(/\001/, "\n", signed); print "Signed-By:" (signed ~ /^\n/ ? "" : " ") signed }
    }
    END {
        if (uri == "") exit 3
        if (only != "") { stanza(only, "main " component); exit }
        if (!have) stanza(codename ((uri in update_uri) ? " " codename "-updates" : ""), component)
        if (backports != "" && !have_backports) stanza(backports, "main " component)
    }
' || {
    echo "apt-source.sh: no source for '$codename main' in $apt_dir/sources.list or $apt_dir/sources.list.d" >&2
    exit 3
}

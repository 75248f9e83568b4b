# Shared by the lint steps: which files are looked at, and C without its comments and strings.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

# Files under the given folders, those that exist: c_files engine server
c_files() {
    for folder in "$@"; do
        [ -d "$folder" ] && find "$folder" -name '*.[ch]'
    done | sort
}

# Blanks comments, strings and character constants of stdin, keeping the line numbers.
code_only() {
    perl -0777 -pe 's{(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\x27(?:\\.|[^\x27\\\n])*\x27)}
                     { my $text = $1; $text =~ s/[^\n]/ /g; $text }gsex'
}

# Greps the code (code_only) of the files after -- : grep_code PATTERN -- FILE...
# Prints file:line:text of each hit; true when there was one.
grep_code() {
    local pattern=$1 found=1 file
    shift 2
    for file in "$@"; do
        code_only <"$file" | grep -nP -- "$pattern" | sed "s|^|$file:|" | grep . && found=0
    done
    return $found
}

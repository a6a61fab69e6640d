# Sourced by deep.sh and browser.sh.

# install MAKE NAME TARGET WHAT: make .venv/ready-NAME. Where the index lacks a package, or there is
# no room for it, say in one line on stderr that TARGET is not run, and exit with 0: that is a fact
# about the machine. Everything else that fails is a failure.
install() {
    absent='No matching distribution found|not found in the package registry|[Tt]here is no version of'
    absent="$absent|[Ff]ailed to fetch|error sending request|Connection|[Tt]imed out|Max retries|No space left on device"
    if ! said=$("$1" --no-print-directory ".venv/ready-$2" 2>&1); then
        why=$(printf '%s\n' "$said" | grep -E "$absent" | tail -n 1)
        if [ -n "$why" ]; then
            echo "$3: not run, since $4 cannot be installed here: $why" >&2
            exit 0
        fi
        printf '%s\n' "$said" >&2
        exit 1
    fi
}

#!/bin/sh
# Install the extras lab and browser and run the tests of `retvar lab`, for the Makefile.
#   browser.sh MAKE BIN WORKERS
# Without Chromium on the PATH, or where the index lacks a package, one line on stderr says so, and
# the exit status is 0: that is a fact about the machine. Everything else that fails is a failure.
make=$1 bin=$2 workers=$3
. "${0%/*}/extras.sh"

found=
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        found=$(command -v "$name")
        break
    fi
done
if [ -z "$found" ]; then
    echo "browser: not run, since there is no Chromium on the PATH; install chromium and try again" >&2
    exit 0
fi
install "$make" browser browser "marimo or playwright"
exec env RETVAR_BROWSER="$found" "$bin/pytest" -q -n "$workers" tests/test_browser_lab.py tests/test_lab.py \
    tests/test_promises.py -k "lab or browser"

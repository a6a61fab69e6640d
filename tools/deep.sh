#!/bin/sh
# Install the extra sb3 and run its tests, for the Makefile.
#   deep.sh MAKE BIN
# Where the index has no torch, or there is no room for it, one line on stderr says so, and the exit
# status is 0: that is a fact about the machine. Everything else that fails is a failure.
make=$1 bin=$2
absent='No matching distribution found|not found in the package registry|[Tt]here is no version of'
absent="$absent|[Ff]ailed to fetch|error sending request|Connection|[Tt]imed out|Max retries|No space left on device"

if ! said=$("$make" --no-print-directory .venv/ready-deep 2>&1); then
    why=$(printf '%s\n' "$said" | grep -E "$absent" | tail -n 1)
    if [ -n "$why" ]; then
        echo "test-deep: not run, since Stable-Baselines3 cannot be installed here: $why" >&2
        exit 0
    fi
    printf '%s\n' "$said" >&2
    exit 1
fi
exec "$bin/pytest" -q tests/test_stable_baselines.py tests/test_deep*.py src/retvar/deep \
    tests/test_repository.py -k "not wheel"

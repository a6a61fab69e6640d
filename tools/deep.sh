#!/bin/sh
# Install the extra sb3 and run its tests, for the Makefile.
#   deep.sh MAKE BIN WORKERS
# Where it cannot be installed, one line on stderr says so, and the exit status is 0.
make=$1 bin=$2 workers=$3
. "${0%/*}/extras.sh"
install "$make" deep test-deep Stable-Baselines3
exec "$bin/pytest" -q -n "$workers" tests/test_stable_baselines.py tests/test_deep*.py src/retvar/deep \
    tests/test_package.py -k "not wheel"

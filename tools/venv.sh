#!/bin/sh
# Create the virtual environment, for the Makefile.
#   venv.sh trouble DIR PYTHON CHOSEN UV   print one line if it cannot be created
#   venv.sh make    DIR PYTHON CHOSEN UV   create it, unless it exists and fits
# CHOSEN is empty if the user did not set PYTHON; any environment that works fits then.
# UV is empty if uv is not used.
dir=$2 python=$3 chosen=$4 uv=$5
who='import sys; print("%d.%d.%d in %s" % (sys.version_info[:3] + (getattr(sys, "base_prefix", sys.prefix),)))'

fits() {
    [ -e "$dir/made" ] || return 1
    existing=$("$dir/bin/python" -c "$who" 2>/dev/null) || return 1
    [ -n "$uv" ] || "$dir/bin/python" -c 'import pip' 2>/dev/null || return 1
    [ -z "$chosen" ] || [ "$existing" = "$("$python" -c "$who" 2>/dev/null)" ]
}

trouble() {
    version=$("$python" -c "$who" 2>/dev/null) || {
        echo "$python does not run; retvar needs Python 3.11 or newer: make PYTHON=python3.12, or where yours is"
        return
    }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "retvar needs Python 3.11 or newer; $python is ${version%% in *}: make PYTHON=python3.12, or where yours is"
        return
    }
    [ -n "$uv" ] || "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        echo "$python lacks venv or ensurepip: install them (Debian, Ubuntu: apt install python3-venv) or install uv"
}

fits && exit
case $1 in
trouble) trouble ;;
make)
    # the base Python, because $python may lie in the folder that is removed
    base=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))') || exit
    [ -e "$dir" ] && echo "$dir is rebuilt"
    rm -rf "$dir"
    echo "$dir: Python $("$base" -c "$who")"
    if [ -n "$uv" ]; then "$uv" venv --quiet --python "$base" "$dir"; else "$base" -m venv "$dir"; fi &&
        touch "$dir/made"
    ;;
esac

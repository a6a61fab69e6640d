#!/bin/sh
# The virtual environment, for the Makefile.
#   venv.sh trouble DIR PYTHON ASKED UV   one line on why it cannot be made; nothing where it can
#   venv.sh make    DIR PYTHON ASKED UV   makes it, unless it is there and fits
# ASKED is empty where nobody asked for this PYTHON: any environment that works fits then.
# UV is empty where uv is not to be used.
dir=$2 python=$3 asked=$4 uv=$5
who='import sys; print("%d.%d.%d in %s" % (sys.version_info[:3] + (getattr(sys, "base_prefix", sys.prefix),)))'

fits() {
    [ -e "$dir/made" ] || return 1
    there=$("$dir/bin/python" -c "$who" 2>/dev/null) || return 1
    [ -n "$uv" ] || "$dir/bin/python" -c 'import pip' 2>/dev/null || return 1
    [ -z "$asked" ] || [ "$there" = "$("$python" -c "$who" 2>/dev/null)" ]
}

trouble() {
    told=$("$python" -c "$who" 2>/dev/null) || {
        echo "$python does not run; retvar needs Python 3.11 or newer: make PYTHON=python3.12, or where yours is"
        return
    }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "retvar needs Python 3.11 or newer; $python is ${told%% in *}: make PYTHON=python3.12, or where yours is"
        return
    }
    [ -n "$uv" ] || "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        echo "$python lacks venv or ensurepip: install them (Debian, Ubuntu: apt install python3-venv) or install uv"
}

fits && exit
case $1 in
trouble) trouble ;;
make)
    # the Python beneath, should $python itself lie in the folder that is made anew
    base=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))') || exit
    [ -e "$dir" ] && echo "$dir is made anew"
    rm -rf "$dir"
    echo "$dir: Python $("$base" -c "$who")"
    if [ -n "$uv" ]; then "$uv" venv --quiet --python "$base" "$dir"; else "$base" -m venv "$dir"; fi &&
        touch "$dir/made"
    ;;
esac

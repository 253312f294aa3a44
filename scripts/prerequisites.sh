# Sourced by ./demo and ./check: installs what a fresh Debian lacks, and only that. Quiet when
# nothing is missing. Packages come from the system's package manager, Rust from rustup where there
# is none or an old one.

minimum_rust_minor=88

# as_root COMMAND...: runs it as root, directly or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "needs root for: $*" >&2
        echo "Run it once as root, or install sudo." >&2
        return 1
    fi
}

# need_packages NAME...: Debian packages that are not installed yet get installed.
need_packages() {
    missing=
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "missing packages (Debian names), and no apt-get to install them:$missing" >&2
        return 1
    fi
    echo "Installing:$missing" >&2
    as_root apt-get update -qq >&2 &&
        # shellcheck disable=SC2086  # a list of words
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends $missing >&2
}

# need_rust COMPONENT...: cargo of at least the crate's rust-version, with these components.
need_rust() {
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    export PATH
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    if [ "${minor:-0}" -lt "$minimum_rust_minor" ]; then
        echo "Installing Rust with rustup (1.$minimum_rust_minor or newer is needed)" >&2
        need_packages curl ca-certificates &&
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y -q --profile minimal >&2
    fi
    for component in "$@"; do
        cargo "$component" --version >/dev/null 2>&1 || rustup component add "$(component_name "$component")" >&2
    done
}

# The rustup component that carries a cargo subcommand.
component_name() {
    case $1 in
        fmt) echo rustfmt ;;
        *) echo "$1" ;;
    esac
}

# need_python_packages NAME==VERSION...: into build/python, an environment of the build's own. Where they
# cannot be had, the tests that use them are skipped and say so.
need_python_packages() {
    [ -x build/python/bin/python ] || python3 -m venv build/python >&2 || return 0
    for package in "$@"; do
        build/python/bin/pip show --quiet "${package%%==*}" 2>/dev/null ||
            build/python/bin/pip install --quiet --disable-pip-version-check "$package" >&2 ||
            echo "no $package: tests that need it are skipped" >&2
    done
}

# need_promtool: Prometheus' checker of rules and metrics, in build/promtool. It is taken out of Debian's
# package, which is not installed: its server must not start on whoever's machine this is. Where it cannot
# be had, the test that uses it is skipped and says so.
need_promtool() {
    # Its sandbox has no access to this folder.
    fetch_prometheus() { apt-get -o APT::Sandbox::User=root download -qq prometheus; }
    [ ! -x build/promtool/promtool ] && ! command -v promtool >/dev/null || return 0
    mkdir -p build/promtool
    (
        cd build/promtool &&
            { fetch_prometheus || { as_root apt-get update -qq && fetch_prometheus; }; } &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool &&
            rm prometheus_*.deb
    ) >&2 || echo "no promtool: the test that needs it is skipped" >&2
}

# What building and running needs: a compiler, cmake, an MPI (whose header is read with libclang), and
# UCX to move blocks.
build_packages="gcc g++ make cmake pkg-config libopenmpi-dev openmpi-bin libclang-dev libucx0"
# What the tests and the benchmarks' peers need on top.
test_packages="iproute2 libgtest-dev libgmock-dev nlohmann-json3-dev binutils python3 python3-venv mpich libmpich-dev clang abigail-tools doxygen libsimdjson-dev ucx-utils"

# Python packages of the tests: a parser of Prometheus text; NVRTC, which compiles the device's kernels;
# MPI for the Python package.
test_python_packages="mpi4py==4.1.2 prometheus_client==0.26.0 nvidia-cuda-nvrtc-cu11==11.8.89"

# Environment for mpirun on one machine: root may run it, more ranks than cores are fine, and
# nothing leaves the loopback interface. For MPICH these names mean nothing.
use_loopback_mpi() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
    export OMPI_MCA_btl_base_warn_component_unused=0
}

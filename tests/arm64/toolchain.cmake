# Cross-compiles for arm64 Linux with Debian's gcc-aarch64-linux-gnu and runs the tests with qemu-user.  See tests/arm64.sh.
# HLLM_ARM64_ROOT (environment): a directory with arm64 files of libutf8proc and libzstd.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(arm64_libs $ENV{HLLM_ARM64_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${arm64_libs})
set(CMAKE_EXE_LINKER_FLAGS_INIT -L${arm64_libs})       # libzstd.pc does not name Debian's directory
set(CMAKE_SHARED_LINKER_FLAGS_INIT -L${arm64_libs})
set(ENV{PKG_CONFIG_LIBDIR} ${arm64_libs}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $ENV{HLLM_ARM64_ROOT})

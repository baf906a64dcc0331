# Included after project() of the library's CMakeLists.txt: dependencies come as static archives where there are some, and the
# library looks for the others beside itself.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
set(CMAKE_INSTALL_RPATH "$ORIGIN")

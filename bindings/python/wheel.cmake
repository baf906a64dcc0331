# Included after project() of the library's CMakeLists.txt: dependencies come as static archives where there are some.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)

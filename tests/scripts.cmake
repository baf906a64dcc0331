# Tests that are not one C file of their own: included by CMakeLists.txt after those.

# The header, alone, by strict compilers.
set_source_files_properties(tests/abi/header_c11.c tests/abi/layout.c PROPERTIES COMPILE_OPTIONS "-Wpedantic;-Werror")
if(NOT CMAKE_CROSSCOMPILING)
  enable_language(CXX)
  add_executable(abi_header_cxx17 tests/abi/header_cxx17.cpp)
  target_compile_features(abi_header_cxx17 PRIVATE cxx_std_17)
  target_compile_options(abi_header_cxx17 PRIVATE -Wpedantic -Werror)
  set_target_properties(abi_header_cxx17 PROPERTIES CXX_EXTENSIONS OFF RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(abi_header_cxx17 PRIVATE hybridllm)
  add_test(NAME abi_header_cxx17 COMMAND abi_header_cxx17)
endif()

# The AVX-VNNI table's arithmetic where the CPU has AVX-512 instead.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(tests/kernels/evex/evex.c PROPERTIES COMPILE_OPTIONS "${kernel_flags};-mavx2;-mfma;-mf16c;-mavx512f;-mavx512vl;-mavx512vnni")
  foreach(name matmul quantize)                         # what is not the same code as in the AVX2 table, and what that takes
    add_executable(kernels_${name}_evex tests/kernels/${name}.c tests/kernels/evex/evex.c)
    target_compile_definitions(kernels_${name}_evex PRIVATE TEST_TABLE=hl_kern_avxvnni_evex)
    target_link_libraries(kernels_${name}_evex PRIVATE hllm_static)
    set_target_properties(kernels_${name}_evex PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    c_test(kernels_${name}_avxvnni-evex kernels_${name}_evex avxvnni-evex)
  endforeach()
endif()

# Whole models take their time, the more so on a busy machine.
foreach(slow golden_scores golden_tokens abi_flat unit_sparse_prepare)
  if(TEST ${slow})
    set_tests_properties(${slow} PROPERTIES TIMEOUT 1200)
  endif()
endforeach()

# The proof that a failing test is seen: it must fail, and it must be the program that says so.
add_executable(runner_fails tests/abi/fails/fails.c)
target_include_directories(runner_fails PRIVATE tests/unit)
set_target_properties(runner_fails PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_test(NAME runner_fails COMMAND runner_fails)
set_tests_properties(runner_fails PROPERTIES WILL_FAIL ON)
add_test(NAME runner_fails_says_so COMMAND runner_fails)
set_tests_properties(runner_fails_says_so PROPERTIES PASS_REGULAR_EXPRESSION "1 of 2 checks failed")

# script_test(NAME COMMAND...): exit 77 is a skip.
function(script_test name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300
    ENVIRONMENT "HLLM_TEST_ROOT=${CMAKE_CURRENT_SOURCE_DIR};HLLM_TEST_BUILD=${CMAKE_BINARY_DIR};CC=${CMAKE_C_COMPILER}")
endfunction()

script_test(arrows sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/arrows.sh)

# The rest looks at the library as it is shipped, on the machine that it is for.
if(NOT HLLM_SANITIZE AND NOT HLLM_FUZZ AND NOT CMAKE_CROSSCOMPILING)
  script_test(abi_symbols sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/abi/symbols.sh $<TARGET_FILE:hybridllm>)
  script_test(readme sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/readme.sh ${CMAKE_BINARY_DIR})
  script_test(install sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/install/run.sh ${CMAKE_BINARY_DIR})
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    script_test(guest sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/guest.sh $<TARGET_FILE:hybridllm> $<TARGET_OBJECTS:hllm_objects>)
  endif()
  script_test(locale sh ${CMAKE_CURRENT_SOURCE_DIR}/tests/locale.sh ${CMAKE_BINARY_DIR}/locale $<TARGET_FILE:abi_locale>)
  add_library(setlocale MODULE tests/locale/set.c)      # for tests/run.sh: the whole suite under another locale
  add_library(slow_read MODULE tests/terminal/slow_read.c)           # for tests/cli.sh
endif()

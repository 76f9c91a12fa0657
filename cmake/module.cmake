# perigee_library(NAME base SRCS a.cc b.cc DEPS x y PRIVATE_DEPS z)
# One folder = one target; DEPS are the modules of the include table (docs/architecture.md) and nothing else.
# PRIVATE_DEPS are third-party parts used by the .cc files only.
add_library(perigee_options INTERFACE)
set(PERIGEE_CXX_OPTIONS
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Werror
  # A false alarm of g++ 12 inside std::string.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # Fused multiply-adds are written out in the kernels; the compiler must not make its own (bits would depend on it).
  -ffp-contract=off)
target_compile_options(perigee_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${PERIGEE_CXX_OPTIONS}>")
target_include_directories(perigee_options INTERFACE ${CMAKE_SOURCE_DIR}/src)

function(perigee_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(perigee_${ARG_NAME} STATIC ${ARG_SRCS})
  target_link_libraries(perigee_${ARG_NAME} PUBLIC perigee_options)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(perigee_${ARG_NAME} PUBLIC perigee_${dep})
  endforeach()
  foreach(dep ${ARG_PRIVATE_DEPS})
    target_link_libraries(perigee_${ARG_NAME} PRIVATE perigee_${dep})
  endforeach()
endfunction()

# perigee_test(NAME base/status SRCS status_test.cc DEPS base LABELS unit)
# Labels: unit (seconds, no server), e2e (starts the program), slow (kept out of the default run).
function(perigee_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  string(REPLACE "/" "_" target "${ARG_NAME}_test")
  add_executable(${target} ${ARG_SRCS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} PRIVATE perigee_${dep})
  endforeach()
  target_link_libraries(${target} PRIVATE perigee_options GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE
    PERIGEE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" PERIGEE_MODELS="${CMAKE_SOURCE_DIR}/models")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${ARG_NAME} COMMAND ${target} ${ARG_ARGS})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300)
endfunction()

# perigee_mpi_test(NAME comm/collectives_mpi SRCS collectives_test.cc DEPS comm PROCESSES 4)
# The same body where each rank is a process of mpirun: the whole program runs in every one, in step. Label mpi.
# Nothing where MPI is absent.
function(perigee_mpi_test)
  cmake_parse_arguments(ARG "" "NAME;PROCESSES;WATCHDOG_MS" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT PERIGEE_MPI)
    return()
  endif()
  if(NOT ARG_WATCHDOG_MS)
    set(ARG_WATCHDOG_MS 60000)
  endif()
  string(REPLACE "/" "_" target "${ARG_NAME}_test")
  add_executable(${target} ${ARG_SRCS} ${CMAKE_SOURCE_DIR}/tests/testing/mpi_main.cc)
  foreach(dep ${ARG_DEPS} comm)
    target_link_libraries(${target} PRIVATE perigee_${dep})
  endforeach()
  target_link_libraries(${target} PRIVATE perigee_options GTest::gtest GTest::gmock)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE PERIGEE_TEST_UNDER_MPIRUN
    PERIGEE_TEST_WATCHDOG_MS=${ARG_WATCHDOG_MS}
    PERIGEE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" PERIGEE_MODELS="${CMAKE_SOURCE_DIR}/models")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${ARG_NAME}
    COMMAND ${CMAKE_SOURCE_DIR}/tools/run_ranks.sh ${ARG_PROCESSES} $<TARGET_FILE:${target}> ${ARG_ARGS})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS mpi TIMEOUT 300 PROCESSORS ${ARG_PROCESSES})
endfunction()

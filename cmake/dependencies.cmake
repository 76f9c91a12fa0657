# Everything third-party is a Debian package (see tools/install_deps.sh). Header-only where the package allows it, so
# that the program needs nothing at run time but libstdc++, libc and libhwy.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
add_library(perigee_hwy ALIAS PkgConfig::HWY)

find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp REQUIRED)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)
find_path(SPDLOG_INCLUDE_DIR spdlog/spdlog.h REQUIRED)
find_path(BOOST_BEAST_INCLUDE_DIR boost/beast.hpp REQUIRED)

add_library(perigee_json INTERFACE)
target_include_directories(perigee_json SYSTEM INTERFACE ${NLOHMANN_JSON_INCLUDE_DIR})

add_library(perigee_cli11 INTERFACE)
target_include_directories(perigee_cli11 SYSTEM INTERFACE ${CLI11_INCLUDE_DIR})

add_library(perigee_fmt INTERFACE)
target_compile_definitions(perigee_fmt INTERFACE FMT_HEADER_ONLY)

add_library(perigee_spdlog INTERFACE)
target_include_directories(perigee_spdlog SYSTEM INTERFACE ${SPDLOG_INCLUDE_DIR})
target_compile_definitions(perigee_spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)

add_library(perigee_beast INTERFACE)
target_include_directories(perigee_beast SYSTEM INTERFACE ${BOOST_BEAST_INCLUDE_DIR})
target_link_libraries(perigee_beast INTERFACE Threads::Threads)

# Ranks as processes under mpirun: optional, in when the package is there.
pkg_check_modules(MPI IMPORTED_TARGET ompi-c)
option(PERIGEE_MPI "Ranks may be processes under mpirun (needs libopenmpi-dev)" ${MPI_FOUND})
if(PERIGEE_MPI)
  if(NOT MPI_FOUND)
    message(FATAL_ERROR "PERIGEE_MPI=ON needs the packages of `tools/install_deps.sh mpi`")
  endif()
  add_library(perigee_mpi ALIAS PkgConfig::MPI)
endif()

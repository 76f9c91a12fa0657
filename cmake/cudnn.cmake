# cuDNN through its header-only C++ frontend, which comes from PyPI at configure time: one pinned, hash-checked wheel,
# of which the headers alone are used. cuDNN itself is the machine's.
set(frontend_version 1.23.0)
set(frontend_sha256 7bdae232a3071501012611fab14aae34dd16983205e56d3c1641317910fdd385)
set(frontend_dir ${CMAKE_BINARY_DIR}/third_party/cudnn_frontend-${frontend_version})
if(NOT EXISTS ${frontend_dir}/include/cudnn_frontend.h)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(WRITE ${frontend_dir}/requirements.txt
    "nvidia-cudnn-frontend==${frontend_version} --hash=sha256:${frontend_sha256}\n")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --no-deps --require-hashes --only-binary=:all:
      --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64
      --dest ${frontend_dir} --requirement ${frontend_dir}/requirements.txt
    RESULT_VARIABLE result ERROR_VARIABLE problem)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "nvidia-cudnn-frontend ${frontend_version} could not be fetched from PyPI: ${problem}")
  endif()
  file(GLOB wheel ${frontend_dir}/*.whl)
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${frontend_dir} PATTERNS "include/*")
endif()

find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
add_library(perigee_cudnn INTERFACE)
target_include_directories(perigee_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${frontend_dir}/include)
target_link_libraries(perigee_cudnn INTERFACE perigee_cuda ${CUDNN_LIBRARY} CUDA::nvrtc)

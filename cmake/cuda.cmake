# The CUDA backend: one real architecture, C++20 by option (CMake 3.25 does not know that nvcc 13 has it), and a device
# compiler whose warnings and register spills end the build. Only libcublasLt is looked up when the program starts:
# beside it in ../lib, or where a toolkit lies.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
set(CMAKE_CUDA17_STANDARD_COMPILE_OPTION "")
set(CMAKE_CUDA17_EXTENSION_COMPILE_OPTION "")
find_package(CUDAToolkit 13.0 REQUIRED)

add_library(perigee_cuda INTERFACE)
target_compile_options(perigee_cuda INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --extended-lambda --expt-relaxed-constexpr
    -Xptxas=--warn-on-spills,--warning-as-error -Xcompiler=-Wall,-Wextra,-Wno-restrict>)
target_include_directories(perigee_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(perigee_cuda INTERFACE CUDA::cudart_static CUDA::cublasLt)

set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib;${CUDAToolkit_LIBRARY_DIR};/usr/local/cuda/lib64")

# cmake --install BUILD --prefix DIR [--strip]: a folder that runs wherever libc, libstdc++ and (in a build with CUDA)
# the CUDA libraries are: bin/perigee, in lib/ every other library that it needs, and the bundled model.
# RPATH, not RUNPATH: it also serves the libraries that come along.
target_link_options(perigee PRIVATE -Wl,--disable-new-dtags)
set_target_properties(perigee PROPERTIES
  INSTALL_RPATH "$ORIGIN/../lib$<$<BOOL:${PERIGEE_CUDA}>:;/usr/local/cuda/lib64;/usr/local/cuda/lib>")
install(TARGETS perigee
  RUNTIME_DEPENDENCIES
    PRE_EXCLUDE_REGEXES
      "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so" "^lib(cuda|cublas|cublasLt|cudnn|nvrtc|nccl)[.\\-_]"
    DIRECTORIES ${CUDAToolkit_LIBRARY_DIR}
  RUNTIME DESTINATION bin
  LIBRARY DESTINATION lib)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/tiny-kimi-linear DESTINATION share/perigee/models)
# Debian's OpenMPI looks for its own parts where Debian has them: here they lie beside it.
install(CODE [[
  file(GLOB libraries "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/lib*.so*")
  foreach(library ${libraries})
    if(NOT IS_SYMLINK ${library})
      unset(runpath)
      file(READ_ELF ${library} RUNPATH runpath)
      if(runpath)
        file(RPATH_CHANGE FILE ${library} OLD_RPATH "${runpath}" NEW_RPATH "$ORIGIN")
      endif()
    endif()
  endforeach()
]])

# Writes OUT, a header that names the commit the program was built from, when it has changed. Run at every build with
# -DSOURCE=DIR -DOUT=FILE.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  set(commit "unknown")
endif()
set(text "#pragma once\n\n#define PERIGEE_COMMIT \"${commit}\"\n")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT "${text}" STREQUAL "${old}")
  file(WRITE ${OUT} "${text}")
endif()

if(PERIGEE_SANITIZE)
  add_compile_options(-fsanitize=${PERIGEE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PERIGEE_SANITIZE})
endif()

# Compiles the hash of the sources into fa3_source_hash(). Runs at every build; the file changes only if the hash does.
set(FA3_SOURCE_HASH_FILE ${PROJECT_BINARY_DIR}/generated/source_hash.hpp)
add_custom_target(fa3_source_hash
  COMMAND ${CMAKE_COMMAND} -DTOOL=${PROJECT_SOURCE_DIR}/tools/source_hash -DOUT=${FA3_SOURCE_HASH_FILE}
          -P ${PROJECT_SOURCE_DIR}/cmake/write_source_hash.cmake
  BYPRODUCTS ${FA3_SOURCE_HASH_FILE} COMMENT "Hashing the sources")

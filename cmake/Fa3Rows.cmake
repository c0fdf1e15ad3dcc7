# One source file per row of a kernel table.

# Adds to `target` one source per row of the table in src/kernels/`table` (a line that starts with {"name", {), made from `template`.
# Sets `count` to their number.
function(fa3_add_rows target table template count)
  set(configs ${PROJECT_SOURCE_DIR}/src/kernels/${table})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${configs})
  file(STRINGS ${configs} rows REGEX "^ *{\"[a-z0-9_]+\", *{")
  set(index 0)
  foreach(row IN LISTS rows)
    string(REGEX REPLACE "^ *{\"([a-z0-9_]+)\".*" "\\1" name "${row}")
    set(FA3_ROW_INDEX ${index})
    set(FA3_ROW_NAME ${name})
    string(REGEX REPLACE "row(.*)\\.in$" "${name}\\1" file ${template})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/rows/${file})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${template} ${source} @ONLY)
    target_sources(${target} PRIVATE ${source})
    math(EXPR index "${index} + 1")
  endforeach()
  set(${count} ${index} PARENT_SCOPE)
endfunction()

# The same for the GPU; the number is a definition called `count`.
function(fa3_add_kernels target table template count)
  fa3_add_rows(${target} ${table} ${template} ${count})
  target_compile_definitions(${target} PRIVATE ${count}=${${count}})
  # -std by hand: CMake 3.25 does not know how to ask nvcc for C++20.
  # Registers, spills and wgmma serialisation are printed by ptxas with exit code 0: the log of every kernel is kept, and
  # a test reads it (tests/build/check_ptxas_log.py).
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=-v;--expt-relaxed-constexpr>")
  set_target_properties(${target} PROPERTIES
    CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/keep_log.sh;${PROJECT_BINARY_DIR}/ptxas")
endfunction()

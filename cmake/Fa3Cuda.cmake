# Finds CUDA if it is wanted and there (FA3_WITH_CUDA), and makes one .cu file per row of the kernel table.
set(FA3_WITH_CUDA OFF)
if(FA3_CUDA STREQUAL "ON" OR FA3_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "" FORCE) # -gencode arch=compute_90a,code=sm_90a
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    find_package(CUDAToolkit 12.8 REQUIRED)
    set(FA3_WITH_CUDA ON)
  elseif(FA3_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FA3_CUDA=ON, but no nvcc was found; set CUDACXX or install the CUDA toolkit")
  endif()
endif()
if(FA3_WITH_CUDA)
  message(STATUS "fa3: Hopper kernels with nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
else()
  message(STATUS "fa3: CPU backend only (no nvcc, or FA3_CUDA=OFF)")
endif()

# Adds to `target` one generated source per row of the table in `configs` (a line that starts with {"name", {).
function(fa3_add_kernels target configs)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${configs})
  file(STRINGS ${configs} rows REGEX "^ *{\"[a-z0-9_]+\", *{")
  set(index 0)
  foreach(row IN LISTS rows)
    string(REGEX REPLACE "^ *{\"([a-z0-9_]+)\".*" "\\1" name "${row}")
    set(FA3_ROW_INDEX ${index})
    set(FA3_ROW_NAME ${name})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/kernels/forward_${name}.cu)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/forward_row.cu.in ${source} @ONLY)
    target_sources(${target} PRIVATE ${source})
    math(EXPR index "${index} + 1")
  endforeach()
  target_compile_definitions(${target} PRIVATE FA3_FORWARD_ROWS=${index})
  # -std by hand: CMake 3.25 does not know how to ask nvcc for C++20.
  # Registers, spills and wgmma serialisation are printed by ptxas with exit code 0: the log of every kernel is kept, and
  # a test reads it (tests/build/check_ptxas_log.py).
  target_compile_options(${target} PRIVATE 
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=-v;--expt-relaxed-constexpr>")
  set_target_properties(${target} PROPERTIES
    CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/keep_log.sh;${PROJECT_BINARY_DIR}/ptxas")
endfunction()

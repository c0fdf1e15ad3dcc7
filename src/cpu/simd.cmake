# Compiles the vector kernels, cpu/attend.hpp and cpu/differentiate.hpp, once per instruction set into fa3_objects. Which
# of them a machine can run is asked at run time (cpu/simd.cpp); nothing else is compiled for more than the baseline of
# the platform.
include(CheckCXXCompilerFlag)

find_path(FA3_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp DOC "Directory of xsimd/xsimd.hpp, version 8.1 or newer")
if(NOT FA3_XSIMD_INCLUDE_DIR)
  message(FATAL_ERROR "fa3 needs the xsimd headers (Debian, Ubuntu: libxsimd-dev); or set FA3_XSIMD_INCLUDE_DIR")
endif()
target_include_directories(fa3_objects SYSTEM PRIVATE ${FA3_XSIMD_INCLUDE_DIR})

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(FA3_SIMD_FLAGS_sse2 "")
  set(FA3_SIMD_FLAGS_avx2 -mavx2 -mfma)
  set(FA3_SIMD_FLAGS_avx512 -mavx512f -mavx512cd -mavx512dq -mavx512bw -mavx512vl -mfma)
  set(FA3_SIMDS avx512 avx2 sse2)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(FA3_SIMD_FLAGS_neon64 "")
  set(FA3_SIMDS neon64)
else()
  message(FATAL_ERROR "fa3: processor is ${CMAKE_SYSTEM_PROCESSOR}, supported are x86_64 and aarch64")
endif()

foreach(simd IN LISTS FA3_SIMDS)
  string(REPLACE ";" " " flags "${FA3_SIMD_FLAGS_${simd}}")
  check_cxx_compiler_flag("${flags}" FA3_COMPILES_${simd})
  if(NOT FA3_COMPILES_${simd})
    message(STATUS "fa3: the compiler does not know ${flags}, no ${simd} kernel")
    continue()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/cpu/attend_${simd}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#define FA3_SIMD ${simd}\n#include \"cpu/attend.hpp\"\n#include \"cpu/differentiate.hpp\"\n")
  target_sources(fa3_objects PRIVATE ${source})
  # Why: GCC 12 takes the deliberately undefined operands in its own AVX-512 header for a mistake (GCC bug 105593).
  set(quiet "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${FA3_SIMD_FLAGS_${simd}};${quiet}")
  set_property(SOURCE cpu/simd.cpp APPEND PROPERTY COMPILE_DEFINITIONS FA3_SIMD_${simd})
endforeach()
target_sources(fa3_objects PRIVATE cpu/threads.cpp)

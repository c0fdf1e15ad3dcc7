# cmake -DNM=nm -DOBJECTS=a.o;b.o -P check_simd_symbols.cmake
# Fails if an object defines a symbol visible to the linker other than the vector kernels of fa3::cpu::<simd>, or lacks one.
cmake_policy(VERSION 3.25)
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to look at")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --extern-only --defined-only --demangle ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  set(missing attend dot_rows differentiate_queries differentiate_keys)
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES " T fa3::cpu::[a-z0-9]+::([a-z_]+)\\(" AND CMAKE_MATCH_1 IN_LIST missing)
      list(REMOVE_ITEM missing ${CMAKE_MATCH_1})
    elseif(NOT symbol MATCHES " V DW\\.ref\\.__gxx_personality_v0$") # the unwinder's pointer, the same everywhere
      message(SEND_ERROR "${object}: ${symbol}")
    endif()
  endforeach()
  if(missing)
    message(SEND_ERROR "${object}: missing are ${missing}")
  endif()
endforeach()
